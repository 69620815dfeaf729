"""Behind Sentinel: the master dies, is replaced while it lives, or turns out to be a replica.

Rules of docs/contract.md: R1.8.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator

import pytest

from oncegate.cache.errors import CacheUnavailable
from oncegate.cache.record import State
from oncegate.cache.redis.connection.connect import RedisConnector
from oncegate.cache.redis.connection.send import LARGE_BYTES
from oncegate.cache.redis.connection.sentinel import watch
from oncegate.cache.redis.store import RedisCache
from oncegate.cache.redis.url import Server, parse_servers_url
from testing.groups import SentinelGroup, wait_until
from testing.servers import RedisServer, free_port
from testing.waiting import until
from tests.cache.inside import session_of, timed, withdrawals_of
from tests.cache.traffic import Books, claim, complete, contend, in_time, state, until_claimed, until_completed

SECRET = "s3cr3t-of-the-user"
TIMEOUT = 0.5
IN_TIME = 30.0
"""What a test grants for a call that should end within `TIMEOUT`."""
FAILED_OVER = 60.0


@pytest.fixture
def group() -> Iterator[SentinelGroup]:
    """A group of the test's own, quick to replace a dead master."""
    with SentinelGroup(down_after=1) as made:
        yield made


def place(server: RedisServer) -> str:
    return f"127.0.0.1:{server.port}"


async def connected(url: str) -> RedisCache:
    cache = RedisCache.from_url(url, timeout=TIMEOUT)
    await until_claimed(cache, f"connected:{os.urandom(6).hex()}")
    return cache


@pytest.fixture
async def cache(group: SentinelGroup) -> AsyncIterator[RedisCache]:
    cache = await connected(group.url)
    yield cache
    await cache.close()


async def replicated(group: SentinelGroup, key: str) -> None:
    await until(lambda: all(server.command("EXISTS", key) for server in group.servers))


async def test_when_the_master_is_killed_calls_fail_in_time_and_go_on_on_the_new_one(group: SentinelGroup) -> None:
    caches = [await connected(group.url) for _ in range(2)]
    books, stop = Books(), asyncio.Event()
    keys = [[f"w{worker}:{number}" for number in range(100_000)] for worker in range(8)]
    traffic = [asyncio.ensure_future(contend(caches, own, books, stop)) for own in keys]
    await until(lambda: len(books.recorded) > 100)
    old = group.master
    old.stop()
    await asyncio.to_thread(group.wait_for_another_master, old)
    before = set(books.recorded)
    await until(lambda: len(set(books.recorded) - before) > 100, within=FAILED_OVER)
    stop.set()
    await asyncio.gather(*traffic)
    assert books.slowest < IN_TIME
    assert len(set(books.recorded) - before) > 100
    for key in set(books.recorded) - before:
        held = await in_time(lambda key=key: caches[0].get(key))  # type: ignore[misc]  # the loop's value is bound on purpose
        assert held is not None
        assert held.record.token == books.recorded[key]
    for cache in caches:
        await cache.close()


async def test_a_completion_is_tried_until_it_lands_on_the_new_master(group: SentinelGroup, cache: RedisCache) -> None:
    token = (await until_claimed(cache, "k")).record.token
    await replicated(group, "k")
    old = group.master
    old.stop()
    with pytest.raises(CacheUnavailable):
        await complete(cache, "k", token)
    assert await until_completed(cache, "k", token, os.urandom(LARGE_BYTES + 1))
    assert group.master is not old
    held = await in_time(lambda: cache.get("k"))  # the other connection knows that the server is there, too
    assert held is not None
    assert (held.record.state, held.record.token) == (State.SUCCEEDED, token)
    assert group.command("STRLEN", "k") > LARGE_BYTES


async def test_a_claim_that_only_the_old_master_knew_gives_its_owner_nothing_on_the_new_one(
    group: SentinelGroup,
    cache: RedisCache,
) -> None:
    """The window that replication leaves: the next caller wins as well. But then the first owner is out."""
    old = group.master
    (replica,) = [server for server in group.servers if server is not old]
    replica.pause()
    old.command("CLIENT", "KILL", "TYPE", "replica")  # what lies in its socket it would still read
    first = (await until_claimed(cache, "k")).record.token
    old.stop()
    replica.resume()
    answer = await until_claimed(cache, "k")
    second = answer.record.token
    assert (answer.won, answer.record.attempt) == (True, 1)
    assert not await in_time(lambda: cache.renew("k", token=first, lease_ms=60_000))
    assert not await in_time(lambda: complete(cache, "k", first))
    assert await in_time(lambda: complete(cache, "k", second))


async def test_a_claim_whose_reply_was_lost_in_a_failover_blocks_nobody(
    group: SentinelGroup, cache: RedisCache
) -> None:
    """It may have been made on the old master, which hangs; that one drops it when it comes back as a replica."""
    old = group.master
    old.pause()
    with pytest.raises(CacheUnavailable):
        await claim(cache, "k")
    await asyncio.to_thread(group.wait_for_another_master, old)
    answer = await until_claimed(cache, "k")
    assert (answer.won, answer.record.attempt) == (True, 1)
    await until(lambda: not len(withdrawals_of(cache)))
    old.resume()
    old.command("REPLICAOF", "127.0.0.1", group.master.port)  # as Sentinel does, but some ten seconds later
    await until(lambda: group.in_step(1), within=FAILED_OVER)
    for server in group.servers:
        assert answer.record.token in server.command("GET", "k")


async def test_a_claim_that_was_replicated_before_its_reply_was_lost_is_withdrawn_on_the_new_master(
    group: SentinelGroup,
    cache: RedisCache,
) -> None:
    pipeline = session_of(cache).claims.pipeline
    assert pipeline is not None
    pipeline.data_received = lambda data: None  # type: ignore[method-assign]  # the test stands in the way
    with timed(cache, 120):  # it is still waited for when the master dies
        pending = asyncio.ensure_future(claim(cache, "k"))
        await replicated(group, "k")
    old = group.master
    (replica,) = [server for server in group.servers if server is not old]
    old.stop()
    with pytest.raises(CacheUnavailable):
        await pending
    await asyncio.to_thread(group.wait_for_another_master, old)
    await until(lambda: replica.command("EXISTS", "k") == 0)
    assert (await until_claimed(cache, "k")).won


async def test_a_failover_of_a_living_master_is_followed_when_sentinel_announces_it(
    group: SentinelGroup, cache: RedisCache
) -> None:
    """The old master never hears of it here, and goes on taking writes; in life it does for ten seconds."""
    await until_completed(cache, "opens the second connection", os.urandom(16), os.urandom(LARGE_BYTES + 1))
    old = group.master
    old.command("ACL", "SETUSER", "default", "-replicaof", "-slaveof")
    await asyncio.to_thread(group.fail_over)
    new = group.master
    await until(lambda: session_of(cache).claims.pipeline is None or _connected_to(cache) == place(new))
    answer = await until_claimed(cache, "k")
    assert answer.won
    token = answer.record.token
    assert _connected_to(cache) == place(new)
    assert await until_completed(cache, "k", token, os.urandom(LARGE_BYTES + 1))
    assert old.command("ROLE")[0] == b"master"
    assert (old.command("EXISTS", "k"), new.command("EXISTS", "k")) == (0, 1)
    assert new.command("STRLEN", "k") > LARGE_BYTES


async def test_sentinel_tells_of_a_failover_before_it_and_right_after(group: SentinelGroup) -> None:
    reported: list[Server | None] = []
    address = parse_servers_url(group.url)
    connector = RedisConnector(address.base, 30)

    async def current() -> Server:
        return "asked", 0

    sentinel = connector.to_sentinel("127.0.0.1", group.sentinel.port, {})
    watching = asyncio.ensure_future(watch(sentinel, group.SERVICE, current, reported.append))
    await until(lambda: reported)
    await asyncio.to_thread(group.fail_over)
    new = ("127.0.0.1", group.master.port)
    await until(lambda: reported[-1] == new)
    assert reported[:3] == [("asked", 0), None, new]
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def test_a_sentinel_is_watched_again_after_whatever_a_connection_raises(sentinel_group: SentinelGroup) -> None:
    reported: list[Server | None] = []
    address = parse_servers_url(sentinel_group.url)
    faults = [RuntimeError("the handler is closed"), CacheUnavailable("it has left")]

    async def current() -> Server:
        if faults:
            raise faults.pop()
        return "asked", 0

    sentinel = RedisConnector(address.base, 30).to_sentinel("127.0.0.1", sentinel_group.sentinel.port, {})
    watching = asyncio.ensure_future(watch(sentinel, sentinel_group.SERVICE, current, reported.append))
    await until(lambda: reported or watching.done())
    assert reported == [("asked", 0)]
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def test_between_the_announcement_of_a_failover_and_its_end_nothing_is_sent(
    sentinel_group: SentinelGroup,
) -> None:
    cache = RedisCache.from_url(sentinel_group.url, timeout=30)
    await complete(cache, "opens the second connection", os.urandom(16), os.urandom(LARGE_BYTES + 1))
    await claim(cache, sentinel_group.key("connects"))
    session, key = session_of(cache), sentinel_group.key("held")
    session._on_place(None)
    for body in (b"small", os.urandom(LARGE_BYTES + 1)):
        with pytest.raises(CacheUnavailable, match="failover of Redis is under way"):
            await complete(cache, key, os.urandom(16), body)
    session._on_place(place(sentinel_group.master))
    assert await complete(cache, key, os.urandom(16))
    await cache.close()


def _connected_to(cache: RedisCache) -> str | None:
    peer = session_of(cache).claims.peer
    return peer.place if peer is not None else None


async def test_a_master_that_became_a_replica_is_left_and_nothing_is_answered_by_it(
    sentinel_group: SentinelGroup,
) -> None:
    """Sentinel still names it: its own word counts. What a replica holds may be old, so not even a replay comes from it."""
    server, other = RedisServer(), RedisServer()
    with server, other, RedisServer("sentinel") as sentinel:
        sentinel.command("SENTINEL", "MONITOR", "lagging", "127.0.0.1", server.port, 1)
        cache = await connected(f"redis+sentinel://127.0.0.1:{sentinel.port}/lagging")
        done = (await until_claimed(cache, "done")).record.token
        assert await until_completed(cache, "done", done)
        server.command("REPLICAOF", "127.0.0.1", other.port)
        await until(lambda: server.command("ROLE")[3] == b"connected")
        with pytest.raises(CacheUnavailable):
            await claim(cache, "new")
        for _ in range(5):
            with pytest.raises(CacheUnavailable, match=r"replica|another master|in time"):
                await cache.get("done")
            await asyncio.sleep(0.06)  # past the pause after a failure: it does look again
        with pytest.raises(CacheUnavailable, match="is a replica, and no Sentinel names another master"):
            await in_time(cache.check)
        await cache.close()


async def test_logins_of_redis_and_of_sentinel_are_used_and_never_told() -> None:
    with (
        RedisServer(config={"requirepass": SECRET}) as server,
        RedisServer("sentinel", config={"requirepass": SECRET + "2"}) as sentinel,
    ):
        sentinel.command("SENTINEL", "MONITOR", "svc", "127.0.0.1", server.port, 1)
        sentinel.command("SENTINEL", "SET", "svc", "auth-pass", SECRET)
        wait_until(
            lambda: b"slave" not in sentinel.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "svc"), "it is known"
        )
        hosts = f"127.0.0.1:{sentinel.port}"
        cache = RedisCache.from_url(f"redis+sentinel://:{SECRET}@{hosts}/svc/3?sentinel_password={SECRET}2", timeout=30)
        assert (await claim(cache, "k")).won
        server.command("SELECT", 3)
        assert server.command("EXISTS", "k") == 1
        await cache.close()
        for url, message in (
            (f"redis+sentinel://:{SECRET}@{hosts}/svc?sentinel_password={SECRET}x", "login was refused"),
            (f"redis+sentinel://:{SECRET}x@{hosts}/svc?sentinel_password={SECRET}2", "login was refused"),
            (f"redis+sentinel://:{SECRET}@{hosts}/svc", "Sentinel at .* asks for a login"),
            (f"redis+sentinel://{hosts}/other?sentinel_password={SECRET}2", "does not know a service other"),
            (f"redis+sentinel://:{SECRET}@127.0.0.1:{free_port()}/svc", "refused"),
        ):
            cache = RedisCache.from_url(url, timeout=30)
            with pytest.raises(CacheUnavailable, match=message) as caught:
                await cache.check()
            assert SECRET not in str(caught.value)
            assert "\n" not in str(caught.value)
            await cache.close()


def test_each_event_loop_listens_to_sentinel_and_leaves_no_connection_behind(sentinel_group: SentinelGroup) -> None:
    before = sentinel_group.sentinel.connections()
    cache = RedisCache.from_url(sentinel_group.url, timeout=30)
    key = sentinel_group.key("loops")

    async def once() -> bool:
        return (await claim(cache, key)).won

    assert [asyncio.run(once()) for _ in range(3)] == [True, False, False]
    asyncio.run(until(lambda: sentinel_group.sentinel.connections() <= before))
    asyncio.run(cache.close())


async def test_advice_warns_of_a_master_that_would_go_on_alone(sentinel_group: SentinelGroup) -> None:
    cache = RedisCache.from_url(sentinel_group.url, timeout=30)
    assert any(line.startswith("min-replicas-to-write is 0") for line in await cache.check())
    sentinel_group.command("CONFIG", "SET", "min-replicas-to-write", 1)
    assert not any("min-replicas" in line for line in await cache.check())
    sentinel_group.command("CONFIG", "SET", "min-replicas-to-write", 0)
    assert await state(cache, sentinel_group.key("none")) is State.ABSENT
    await cache.close()
