"""The entries by which processes show that they are up, in every cache: kept again, gone by themselves, removed, bounded.

Rules of docs/contract.md: R11.44, R11.45.
"""

import asyncio
import os

import pytest

from oncegate.cache.memory.store import MemoryCache
from oncegate.cache.redis.store import RedisCache
from oncegate.cache.sql.store import SqlCache
from oncegate.cache.store import Described, Describes, KeepsProcesses
from testing.servers import RedisServer
from testing.waiting import until
from tests.cache.stores import MemoryStore, Store


async def entries(cache: KeepsProcesses, namespace: str) -> list[bytes]:
    return sorted(kept.entry for kept in await cache.processes(namespace))


def fresh() -> str:
    return f"up-{os.urandom(4).hex()}"


async def test_an_entry_is_kept_in_place_of_the_last_one_and_removed(store: Store) -> None:
    cache, namespace = store.cache, fresh()
    assert isinstance(cache, KeepsProcesses)
    assert await cache.processes(namespace) == []
    for name, entry in (("h/1", b"a"), ("h/2", b"b"), ("h/1", b'{"c": "\n"}')):
        await cache.keep_process(namespace, name, entry, ttl_ms=60_000)
    await cache.keep_process(fresh(), "h/1", b"of another namespace", ttl_ms=60_000)
    assert await entries(cache, namespace) == [b"b", b'{"c": "\n"}']
    assert all(0 < kept.remaining_ms <= 60_000 for kept in await cache.processes(namespace))
    assert (await cache.scan(namespace)).keys == ()  # they are no records
    for name in ("h/1", "h/1", "h/3"):
        await cache.forget_process(namespace, name)
    assert await entries(cache, namespace) == [b"b"]


async def test_it_goes_at_its_own_time_and_comes_again(store: Store) -> None:
    cache, namespace = store.cache, fresh()
    assert isinstance(cache, KeepsProcesses)
    await cache.keep_process(namespace, "h/1", b"short", ttl_ms=100)
    await cache.keep_process(namespace, "h/2", b"long", ttl_ms=60_000)
    if isinstance(store, MemoryStore):
        store.pass_time(100)

    async def is_gone() -> bool:
        return await entries(cache, namespace) == [b"long"]

    await until(is_gone)
    await cache.keep_process(namespace, "h/1", b"again", ttl_ms=60_000)
    assert await entries(cache, namespace) == [b"again", b"long"]
    await cache.keep_process(namespace, "h/1", b"short", ttl_ms=1)
    await asyncio.sleep(0.01)  # it is over, and perhaps not swept: there is nothing to remove, and nothing is put there
    if isinstance(store, MemoryStore):
        store.pass_time(1)
    await cache.forget_process(namespace, "h/1")
    assert await entries(cache, namespace) == [b"long"]


async def test_those_that_are_over_are_not_kept_for_good_in_redis(redis_server: RedisServer) -> None:
    cache, namespace = RedisCache.from_url(redis_server.url, timeout=30), fresh()
    key = f"{{{namespace}:processes}}"
    await cache.keep_process(namespace, "h/8", b"lives", ttl_ms=60_000)  # else the keys would expire as a whole
    for number in range(5):
        await cache.keep_process(namespace, f"h/{number}", b"x", ttl_ms=1)
    await asyncio.sleep(0.01)
    await cache.keep_process(namespace, "h/9", b"y", ttl_ms=60_000)
    assert sorted(redis_server.command("HKEYS", key)) == [b"h/8", b"h/9"]
    assert redis_server.command("ZRANGE", f"{key}:ends", 0, -1) == [b"h/8", b"h/9"]
    for each in (key, f"{key}:ends"):  # where nobody writes any more, nothing stays
        assert 0 < redis_server.command("PTTL", each) <= 60_000
    await cache.close()


@pytest.mark.parametrize("kind", ["memory", "redis"])
async def test_there_are_not_more_than_so_many(
    kind: str, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"oncegate.cache.{kind}.store.MOST_PROCESSES", 2)
    cache: MemoryCache | RedisCache = MemoryCache()
    if kind == "redis":
        cache = RedisCache.from_url(redis_server.url, timeout=30)
    namespace = fresh()
    for name in ("h/1", "h/2", "h/3", "h/1"):
        await cache.keep_process(namespace, name, name.encode(), ttl_ms=60_000)
    assert await entries(cache, namespace) == [b"h/1", b"h/2"]
    await cache.close()


async def test_it_is_written_to_a_full_redis_too() -> None:
    with RedisServer() as server:
        server.command("CONFIG", "SET", "maxmemory", "1")
        cache = RedisCache.from_url(server.url, timeout=30)
        await cache.keep_process("n", "h/1", b"a", ttl_ms=60_000)
        assert await entries(cache, "n") == [b"a"]
        await cache.close()


async def test_each_cache_says_how_it_stands(store: Store) -> None:
    cache = store.cache
    assert isinstance(cache, Describes)
    described: Described = await cache.describe()
    kind = "memory" if isinstance(cache, MemoryCache) else cache.system if isinstance(cache, SqlCache) else "redis"
    assert described.kind == kind
    assert described.parts
    assert described.advice == await cache.check()
    for part in described.parts:
        assert type(part["used_bytes"]) is int
        if kind != "memory":
            assert part["name"]
        if kind in ("memory", "redis"):
            assert type(part["limit_bytes"]) is int
        if kind == "redis":
            assert part["policy"] == "noeviction"
            assert part["persistence"] in ("aof", "rdb", "none")
        else:
            assert part["persistence"]
    if kind == "memory":
        assert described.parts[0]["records"] == 0


async def test_redis_says_what_is_a_danger() -> None:
    with RedisServer() as server:
        cache = RedisCache.from_url(server.url, timeout=30)
        for name, value in (("maxmemory", "50mb"), ("maxmemory-policy", "allkeys-lru"), ("appendonly", "yes")):
            server.command("CONFIG", "SET", name, value)
        described = await cache.describe()
        (part,) = described.parts
        assert (part["limit_bytes"], part["policy"], part["persistence"]) == (50 * 2**20, "allkeys-lru", "aof")
        assert part["last_save"] == "ok"
        assert any("maxmemory-policy is allkeys-lru" in line for line in described.advice)
        server.command("ACL", "SETUSER", "default", "-info", "-config")
        (blind,) = (await cache.describe()).parts  # what it may not know it doesn't invent
        assert set(blind) == {"name"}
        await cache.close()
