"""Sentinel and Cluster, all connections encrypted."""

import os

import pytest

from oncegate.cache.record import State
from oncegate.cache.redis.store import RedisCache
from testing.groups import ClusterGroup, SentinelGroup
from tests.cache.traffic import claim, complete, state


@pytest.mark.parametrize("kind", [SentinelGroup, ClusterGroup])
async def test_it_works_with_every_connection_encrypted(kind: type[SentinelGroup] | type[ClusterGroup]) -> None:
    with kind(tls=True) as group:
        assert group.url.startswith("rediss+")
        cache = RedisCache.from_url(group.url, timeout=10)
        for number in range(6):  # on more than one node, as good as certainly
            key, token = group.key(f"k{number}"), os.urandom(16)
            assert (await claim(cache, key, token)).won
            assert await complete(cache, key, token)
            assert await state(cache, key) is State.SUCCEEDED
        assert isinstance(await cache.check(), list)
        await cache.close()
