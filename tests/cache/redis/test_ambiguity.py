"""Claims whose reply was lost: nobody may be left owning a record that no attempt runs for.

Each test counts what the scripts did (``set``, ``del``), so that a claim that never reached Redis can't pass for one that
was withdrawn.

Rules of docs/contract.md: R5.25.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from oncegate.cache.errors import CacheUnavailable
from oncegate.cache.record import Claim, ClaimRequest, Record, State
from oncegate.cache.redis.connection.connect import Peer
from oncegate.cache.redis.connection.pipe import PipelinedConnection
from oncegate.cache.redis.connection.server import Session
from oncegate.cache.redis.connection.withdrawal import Elsewhere
from oncegate.cache.redis.store import RedisCache
from testing.servers import RedisServer
from testing.waiting import until
from tests.cache.inside import cached, is_withdrawing, session_of, timed, withdrawals_of
from tests.cache.proxy import Proxy

PRINT = b"p" * 16


def claim(cache: RedisCache, key: str, **more: Any) -> "asyncio.Task[Claim]":
    token: Any = more.pop("token", None) or os.urandom(16)
    return asyncio.ensure_future(cache.claim(key, ClaimRequest(token, PRINT, 60_000, 60_000), **more))


async def opened(url: str) -> RedisCache:
    """Calls are answered in time, however slow the machine is, unless they are given less time."""
    cache = RedisCache.from_url(url, timeout=30)
    await cache.get("nothing")
    return cache


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[RedisServer, RedisCache]]:
    async with cached() as (server, cache):
        await cache.get("nothing")
        yield server, cache


@asynccontextmanager
async def proxied(**options: Any) -> AsyncIterator[tuple[RedisServer, Proxy, RedisCache]]:
    with RedisServer(**options) as server:
        async with Proxy(server.port) as proxy:
            cache = await opened(proxy.url)
            yield server, proxy, cache
            await cache.close()


async def lost(server: RedisServer, proxy: Proxy, cache: RedisCache) -> "asyncio.Task[Claim]":
    """A claim on ``k`` that was made, and whose reply will not come."""
    proxy.swallow_replies()
    pending = claim(cache, "k")
    await until(lambda: server.command("EXISTS", "k"))
    return pending


async def overdue(server: RedisServer, cache: RedisCache, **more: Any) -> None:
    """A claim on ``k`` whose time was over before its reply came, which is on its way now."""
    server.pause()
    with pytest.raises(CacheUnavailable, match="in time"), timed(cache):
        await claim(cache, "k", **more)
    server.resume()


def withdrawn(server: RedisServer, key: str) -> bool:
    """Whether a claim was made and given back."""
    return server.calls("set") >= 1 and server.calls("del") >= 1 and server.command("EXISTS", key) == 0


async def test_a_claim_that_is_won_after_its_time_out_is_withdrawn() -> None:
    async with connected() as (server, cache):
        await overdue(server, cache)
        await until(lambda: withdrawn(server, "k"))


async def test_a_claim_that_is_won_after_its_caller_was_cancelled_is_withdrawn() -> None:
    async with connected() as (server, cache):
        server.pause()
        with timed(cache):
            claims = [claim(cache, f"k{number}") for number in range(5)]
            await asyncio.sleep(0)  # sent
        for each in claims[::2]:
            each.cancel()
        await asyncio.gather(*claims, return_exceptions=True)
        assert [each.cancelled() for each in claims] == [True, False, True, False, True]
        server.resume()
        await until(lambda: server.calls("del") == 5)
        assert [server.command("EXISTS", f"k{number}") for number in range(5)] == [0] * 5
        won = await claim(cache, "k0")
        assert (won.won, won.record.attempt) == (True, 1)


async def test_a_claim_answered_and_cancelled_in_the_same_tick_is_withdrawn() -> None:
    async with connected() as (server, cache):
        pipeline = session_of(cache).claims.pipeline
        assert pipeline is not None
        receive = pipeline.data_received

        def receive_and_cancel(data: bytes) -> None:
            receive(data)
            task.cancel()

        pipeline.data_received = receive_and_cancel  # type: ignore[method-assign]  # the test stands in the way
        task = claim(cache, "k")
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: withdrawn(server, "k"))


async def test_a_claim_that_is_won_late_goes_to_whoever_adopts_it() -> None:
    adopted: list[Claim] = []
    async with connected() as (server, cache):
        token = os.urandom(16)
        await overdue(server, cache, token=token, adopt=adopted.append)
        await until(lambda: adopted)
        assert adopted[0].won
        assert adopted[0].record.token == token
        assert await cache.complete(
            "k", Record(token=token, fingerprint=PRINT, attempt=1, state=State.SUCCEEDED, response=None), ttl_ms=60_000
        )
        assert server.calls("del") == 0


async def test_an_adopter_that_raises_harms_neither_the_connection_nor_its_record(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def adopt(_: Claim) -> None:
        raise RuntimeError("the adopter's own fault")

    async with connected() as (server, cache):
        ours = server.command("CLIENT", "ID")
        await overdue(server, cache, adopt=adopt)
        await until(lambda: "callback" in caplog.text)
        assert (await claim(cache, "other")).won
        assert server.command("CLIENT", "ID") == ours
        assert server.command("EXISTS", "k") == 1  # its attempt may have begun: it is left to lapse


async def test_a_late_claim_that_was_lost_to_somebody_else_is_left_alone() -> None:
    with RedisServer() as server:
        cache, other = await opened(server.url), await opened(server.url)
        owner = os.urandom(16)
        assert (await claim(other, "k", token=owner)).won
        await overdue(server, cache)
        await until(lambda: server.calls("evalsha") >= 4)
        await cache.close()
        held = await other.get("k")
        assert held is not None
        assert held.record.token == owner
        await other.close()


async def test_a_claim_whose_reply_was_lost_with_the_connection_is_withdrawn() -> None:
    async with proxied() as (server, proxy, cache):
        pending = await lost(server, proxy, cache)
        proxy.cut_clients()
        with pytest.raises(CacheUnavailable):
            await pending
        await until(lambda: withdrawn(server, "k"))
        assert server.calls("client|kill") == 1


async def test_a_claim_still_on_its_way_when_the_connection_broke_is_never_made() -> None:
    """Without the kill, it would be made after its withdrawal, and block its key for nobody."""
    async with proxied() as (server, proxy, cache):
        proxy.hold_requests()
        with pytest.raises(CacheUnavailable), timed(cache):
            await claim(cache, "k")
        proxy.cut_clients()
        await until(lambda: server.calls("client|kill") == 1)
        await proxy.deliver_held()
        assert server.calls("set") == 0
        assert server.command("EXISTS", "k") == 0


async def test_withdrawals_outlast_an_outage() -> None:
    async with proxied(persist=True) as (server, proxy, cache):
        pending = await lost(server, proxy, cache)
        server.stop()
        with pytest.raises(CacheUnavailable):
            await pending
        with pytest.raises(CacheUnavailable):
            await cache.get("k")
        server.start()
        await until(lambda: server.command("EXISTS", "k") == 0)
        assert server.calls("client|kill") == 0  # another process: that id could be anybody's there


def settled(cache: RedisCache) -> bool:
    """Whether nothing is left to be withdrawn, nor on its way."""
    return not len(withdrawals_of(cache)) and not is_withdrawing(session_of(cache))


def before_withdrawing(cache: RedisCache, meddle: Callable[[], object]) -> None:
    """Have something happen on the server between a claim and its withdrawal."""
    settle = withdrawals_of(cache).settle

    async def meddle_and_settle(
        pipeline: PipelinedConnection, peer: Peer, deadline: float, elsewhere: Elsewhere
    ) -> bool:
        meddle()
        return await settle(pipeline, peer, deadline, elsewhere)

    withdrawals_of(cache).settle = meddle_and_settle  # type: ignore[method-assign]  # the test stands in the way


async def test_a_claim_is_withdrawn_although_the_scripts_were_flushed() -> None:
    async with connected() as (server, cache):
        before_withdrawing(cache, lambda: server.command("SCRIPT", "FLUSH"))
        await overdue(server, cache)
        await until(lambda: withdrawn(server, "k") and settled(cache))


async def test_a_withdrawal_that_redis_refuses_is_tried_again() -> None:
    async with connected() as (server, cache):
        needed = iter(["1", "1", "0"])
        before_withdrawing(cache, lambda: server.command("CONFIG", "SET", "min-replicas-to-write", next(needed)))
        await overdue(server, cache)
        await until(lambda: withdrawn(server, "k"))
        assert next(needed, None) is None


async def test_a_withdrawal_that_can_not_be_made_holds_up_no_other() -> None:
    async with connected() as (server, cache):
        before_withdrawing(cache, lambda: server.command("DEL", "list") and server.command("RPUSH", "list", "x"))
        server.pause()
        with timed(cache):
            ends = await asyncio.gather(*[claim(cache, key) for key in ("list", "k")], return_exceptions=True)
        assert all(isinstance(end, CacheUnavailable) for end in ends)
        server.resume()
        await until(lambda: withdrawn(server, "k") and settled(cache))
        assert server.command("TYPE", "list") == b"list"


async def test_closing_waits_for_claims_that_were_given_up() -> None:
    async with connected() as (server, cache):
        pending = claim(cache, "k")
        await asyncio.sleep(0)
        pending.cancel()
        await cache.close()
        assert withdrawn(server, "k")


def test_a_claim_left_behind_by_a_closed_loop_is_withdrawn_from_the_next() -> None:
    with RedisServer() as server:
        caches: list[RedisCache] = []
        sessions: list[Session] = []

        async def leave() -> None:
            caches.append(await opened(server.url))
            sessions.append(session_of(caches[0]))
            server.pause()
            with pytest.raises(CacheUnavailable), timed(caches[0]):
                await claim(caches[0], "k")

        async def come_back() -> None:
            server.resume()
            await caches[0].check()
            await until(lambda: server.calls("client|kill") == 2 and server.calls("evalsha") >= 2)
            await caches[0].close()

        asyncio.run(leave())
        assert not any(is_withdrawing(session) for session in sessions)  # no task on a closed loop
        asyncio.run(come_back())
        assert server.command("EXISTS", "k") == 0
