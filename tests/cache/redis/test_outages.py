"""Redis stopped, stalled, restarted: every call ends in time, and the same cache works again afterwards.

Rules of docs/contract.md: R1.8.
"""

import asyncio
import gc
import os
import select
import time
import warnings
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from oncegate.cache.errors import CacheUnavailable
from oncegate.cache.record import ClaimRequest, Record, State, StoredResponse
from oncegate.cache.redis.connection.pipe import Bounds
from oncegate.cache.redis.store import RedisCache
from testing.inside import transport_of
from testing.servers import RedisServer
from testing.waiting import until
from tests.cache.inside import cached, session_of
from tests.cache.proxy import Proxy

PRINT = b"p" * 16
LEASE: dict[str, Any] = {"fingerprint": PRINT, "lease_ms": 30_000, "retention_ms": 60_000}
Run = Callable[[Coroutine[Any, Any, Any]], Any]
TIMEOUT = 0.5
IN_TIME = 30.0
"""What a test grants for a call that should end within `TIMEOUT`: it must end, on a slow machine too."""


async def answers(cache: RedisCache) -> bool:
    try:
        await cache.get("nothing")
    except CacheUnavailable:
        return False
    return True


async def until_it_answers(cache: RedisCache) -> None:
    await until(lambda: answers(cache))


async def test_a_stopped_server_fails_calls_in_time_and_the_cache_comes_back_with_it() -> None:
    async with cached(persist=True, timeout=2 * IN_TIME) as (server, cache):
        await cache.get("nothing")
        server.stop()
        async with asyncio.timeout(IN_TIME):
            for _ in range(5):
                with pytest.raises(CacheUnavailable):
                    await cache.claim("k", ClaimRequest(token=os.urandom(16), **LEASE))
        server.start()
        await until_it_answers(cache)
        assert (await cache.claim("k", ClaimRequest(token=os.urandom(16), **LEASE))).won


async def test_a_server_that_never_was_there_fails_in_time_with_one_line() -> None:
    cache = RedisCache.from_url("redis://user:secret@127.0.0.1:1/0", timeout=2 * IN_TIME)
    async with asyncio.timeout(IN_TIME):
        with pytest.raises(CacheUnavailable) as caught:
            await cache.check()
    text = str(caught.value)
    assert "127.0.0.1:1" in text
    assert "refused" in text
    assert "\n" not in text
    assert "secret" not in text
    await cache.close()


async def test_a_server_that_accepts_and_says_nothing_fails_in_time() -> None:
    accepted: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(lambda _, writer: accepted.append(writer), "127.0.0.1", 0)
    cache = RedisCache.from_url(f"redis://127.0.0.1:{silent.sockets[0].getsockname()[1]}", timeout=TIMEOUT)
    async with asyncio.timeout(IN_TIME):
        with pytest.raises(CacheUnavailable, match="in time"):
            await cache.claim("k", ClaimRequest(token=os.urandom(16), **LEASE))
    await cache.close()
    silent.close()
    for writer in accepted:
        writer.close()
        await writer.wait_closed()


async def test_a_stalled_server_fails_calls_in_time_and_goes_on_on_the_same_connection() -> None:
    async with cached(timeout=TIMEOUT, bounds=Bounds(patience=60)) as (server, cache):
        await until_it_answers(cache)
        pipeline = session_of(cache).claims.pipeline
        server.pause()
        async with asyncio.timeout(IN_TIME):
            with pytest.raises(CacheUnavailable, match="in time"):
                await cache.get("k")
        server.resume()
        await until_it_answers(cache)
        assert session_of(cache).claims.pipeline is pipeline


async def test_calls_end_in_time_behind_others_that_have_timed_out() -> None:
    """Nobody looks for the dead connection for an hour: that must not be when the next call's time-out is noticed."""
    async with cached(timeout=TIMEOUT, bounds=Bounds(patience=3600)) as (server, cache):
        await until_it_answers(cache)
        server.pause()
        async with asyncio.timeout(IN_TIME):
            for _ in range(3):
                with pytest.raises(CacheUnavailable, match="in time"):
                    await cache.get("k")
        server.resume()
        await until_it_answers(cache)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_replies_that_came_while_the_loop_was_held_up_are_not_time_outs(run: Run, redis_server: RedisServer) -> None:
    async def held_up() -> None:
        cache = RedisCache.from_url(redis_server.url, timeout=3)
        await until_it_answers(cache)
        pipeline = session_of(cache).claims.pipeline
        assert pipeline is not None
        connection = transport_of(pipeline).get_extra_info("socket").fileno()
        call = asyncio.ensure_future(cache.get("nothing"))
        for _ in range(2):  # queued, then written
            await asyncio.sleep(0)
        # The loop is meant to stand still: until the reply is there, and its time is over.
        assert select.select([connection], [], [], IN_TIME)[0]
        time.sleep(3)  # noqa: ASYNC251 - see above
        await call
        await cache.close()

    run(held_up())


async def test_a_connection_on_which_nothing_comes_back_is_opened_anew() -> None:
    with RedisServer() as server:
        async with Proxy(server.port) as proxy:
            cache = RedisCache.from_url(proxy.url, timeout=TIMEOUT)
            await until_it_answers(cache)
            before = proxy.connections
            proxy.swallow_replies()
            await until_it_answers(cache)
            assert proxy.connections > before
            await cache.close()


async def test_a_stalled_server_does_not_queue_without_bound() -> None:
    async with cached(bounds=Bounds(commands=50, patience=60)) as (server, cache):
        await cache.get("nothing")
        server.pause()
        calls = [asyncio.ensure_future(cache.get(f"k{number}")) for number in range(80)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        refused = [call for call in calls if call.done()]
        assert len(refused) == 30
        assert all("does not keep up" in str(call.exception()) for call in refused)
        server.resume()
        assert [await call for call in calls if call not in refused] == [None] * 50


async def test_bytes_that_a_stalled_server_does_not_read_count_against_the_bound() -> None:
    body = StoredResponse(200, (), bytes(1_000_000), 1)
    outcome: dict[str, Any] = {"fingerprint": PRINT, "attempt": 1, "state": State.SUCCEEDED, "response": body}

    def complete(number: int) -> "asyncio.Future[bool]":
        return asyncio.ensure_future(
            cache.complete(f"k{number}", Record(token=os.urandom(16), **outcome), ttl_ms=60_000)
        )

    async with cached(bounds=Bounds(bytes=8_000_000, patience=60)) as (server, cache):
        await cache.get("nothing")
        assert await complete(-1)
        server.pause()
        calls = [complete(number) for number in range(20)]
        await until(lambda: sum(call.done() for call in calls) == 13)
        server.resume()
        assert sum(answer is True for answer in await asyncio.gather(*calls, return_exceptions=True)) == 7


async def test_a_cancelled_caller_does_not_shift_the_replies_of_others() -> None:
    async with cached() as (_, cache):
        tokens = {f"k{number}": os.urandom(16) for number in range(40)}
        for key, token in tokens.items():
            await cache.claim(key, ClaimRequest(token=token, **LEASE))
        calls = {key: asyncio.ensure_future(cache.get(key)) for key in tokens}
        await asyncio.sleep(0)
        for key in list(calls)[::3]:
            calls.pop(key).cancel()
        for key, call in calls.items():
            held = await call
            assert held is not None
            assert held.record.token == tokens[key]


@pytest.mark.parametrize("kind", ["tcp", "tls", "unix"])
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_each_event_loop_has_connections_of_its_own_and_leaves_none_behind(run: Run, kind: str) -> None:
    """A test client makes a loop per request: the cache must work on each, and nothing may warn about the old ones."""
    with RedisServer(kind) as server, warnings.catch_warnings():
        warnings.simplefilter("error")
        cache = RedisCache.from_url(server.url, timeout=30)

        async def once() -> bool:
            return (await cache.claim("k", ClaimRequest(token=os.urandom(16), **LEASE))).won

        assert [run(once()) for _ in range(3)] == [True, False, False]
        gc.collect()
        asyncio.run(until(lambda: server.connections() == 0))
        run(cache.close())


async def test_closing_twice_and_using_it_again_works(redis_server: RedisServer) -> None:
    cache = RedisCache.from_url(redis_server.url, timeout=30)
    await cache.close()
    await cache.get("nothing")
    await cache.close()
    await cache.close()
    await cache.get("nothing")
    await cache.close()


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("oncegate.cache")]


@pytest.mark.parametrize("persist", [True, False])
async def test_a_redis_that_is_another_one_is_told_of_once(persist: bool, caplog: pytest.LogCaptureFixture) -> None:
    async with cached(persist=persist, timeout=TIMEOUT) as (server, cache):
        await until_it_answers(cache)
        while not (await cache.claim(server.key("kept"), ClaimRequest(token=os.urandom(16), **LEASE))).won:
            pass  # a slow machine may answer too late
        server.stop()
        await until(lambda: session_of(cache).claims.pipeline is None)
        assert not await answers(cache)
        server.start()
        await until_it_answers(cache)
        place = session_of(cache).place
        what = "after a restart or a failover; it holds 1 keys" if persist else "and empty: what was executed before"
        await until(lambda: any(what in line for line in messages(caplog)))
        for _ in range(20):
            await answers(cache)
        assert len([line for line in messages(caplog) if line.startswith(f"Redis at {place} is another one now")]) == 1
        assert [line for line in messages(caplog) if line.endswith("is back")] == [f"Redis at {place} is back"]


async def test_a_connection_that_broke_and_is_there_again_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    async with cached(timeout=IN_TIME) as (server, cache):
        assert await answers(cache)
        server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await until(lambda: session_of(cache).claims.pipeline is None)
        assert await answers(cache)
        assert messages(caplog) == []
