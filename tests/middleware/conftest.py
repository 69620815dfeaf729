"""Each test that asks for a ``door`` runs on memory and on Redis, and leaves no attempt, slot or background write behind."""

from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import uuid4

import pytest

from oncegate.cache.base import Cache
from oncegate.cache.memory import MemoryCache
from oncegate.cache.redis import RedisCache
from tests.middleware.door import PATIENCE, Door

MakeDoor = Callable[..., Door]


@pytest.fixture
def namespace() -> str:
    """One per test: the Redis is shared by the whole run."""
    return uuid4().hex


@pytest.fixture(params=["memory", "redis"])
async def cache(request: pytest.FixtureRequest) -> AsyncIterator[Cache]:
    if request.param == "memory":
        yield MemoryCache()
        return
    redis = RedisCache.from_url(request.getfixturevalue("redis_url"), timeout=PATIENCE)
    yield redis
    await redis.close()


@pytest.fixture
async def door(cache: Cache, namespace: str) -> AsyncIterator[MakeDoor]:
    """Makes a `Door` around an app; several share the test's cache and namespace, as the processes of one gateway do."""
    made: list[Door] = []

    def make(app: Any, **options: Any) -> Door:
        made.append(Door(app, cache, namespace, **options))
        return made[-1]

    yield make
    for one in made:
        assert await one.middleware.drain(PATIENCE) == 0, "an attempt does not end"
        assert one.slots == 0, "a slot leaked"
