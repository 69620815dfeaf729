"""Calls to PostgreSQL whose answer is lost: asked again, withdrawn, never assumed (contract R5.25, R12.62)."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from urllib.parse import urlsplit

import psycopg
import pytest

from oncegate.cache.errors import CacheUnavailable
from oncegate.cache.record import Claim, ClaimRequest, Record, State
from oncegate.cache.sql.calls import MOST_TRIES
from oncegate.cache.sql.postgresql import statements
from oncegate.cache.sql.rows import AnswerLost, Expected, Reply, Step, Swap
from oncegate.cache.sql.store import SqlCache
from testing.postgresql import PostgreSQLServer
from testing.waiting import until
from tests.cache.proxy import Proxy
from tests.cache.sql.inside import is_quiet, line_of, set_timeout

PRINT = b"p" * 16
LEASE_MS, RETENTION_MS, TTL_MS = 600_000, 600_000, 600_000
RETRY = frozenset({State.FAILED, State.UNKNOWN})


class Behind:
    """A database of its own behind a proxy, and what is in its table."""

    def __init__(self, server: PostgreSQLServer, database: str, proxy: Proxy) -> None:
        self.server = server
        self.database = database
        self.proxy = proxy

    def cache(self, timeout: float) -> SqlCache:
        port = urlsplit(self.proxy.url).port
        return SqlCache.from_url(f"postgresql://postgres@127.0.0.1:{port}/{self.database}", timeout=timeout)

    def heads(self) -> list[bytes]:
        """Version, state and token of each record that lives."""
        rows = self.server.execute(
            f"SELECT substr(data, 1, 18) FROM oncegate_records WHERE ends_ms > {statements.NOW}", self.database
        )
        return [bytes(head) for (head,) in rows]


@pytest.fixture
async def behind(records_server: PostgreSQLServer) -> AsyncIterator[Behind]:
    database = records_server.database()
    records_server.execute(statements.TABLES, database)
    async with Proxy(records_server.port) as proxy:
        yield Behind(records_server, database, proxy)


@asynccontextmanager
async def opened(behind: Behind, timeout: float = 30) -> AsyncIterator[SqlCache]:
    """A cache with both of its connections open."""
    cache = behind.cache(timeout)
    await cache.check()
    token = os.urandom(16)
    await cache.claim("warm:key", ClaimRequest(token, PRINT, LEASE_MS, RETENTION_MS))
    await cache.release("warm:key", token=token)
    yield cache
    await cache.close()


def claim(cache: SqlCache, token: bytes, takeover: frozenset[State] = frozenset()) -> "asyncio.Task[Claim]":
    request = ClaimRequest(token, PRINT, LEASE_MS, RETENTION_MS, takeover)
    return asyncio.ensure_future(cache.claim("a:key", request))


async def test_a_claim_whose_answer_was_lost_is_its_own(behind: Behind) -> None:
    token = os.urandom(16)
    async with opened(behind) as cache:
        behind.proxy.swallow_replies()
        pending = claim(cache, token)
        await until(lambda: behind.heads() == [b"\x01I" + token])
        behind.proxy.cut_clients()
        won = await pending
        assert (won.won, won.record.attempt, won.record.token) == (True, 1, token)


async def test_a_claim_that_was_lost_on_its_way_is_sent_again(behind: Behind) -> None:
    token = os.urandom(16)
    async with opened(behind) as cache:
        behind.proxy.hold_requests()
        pending = claim(cache, token)
        await asyncio.sleep(0)
        behind.proxy.cut_clients()
        won = await pending
        assert (won.won, won.record.attempt) == (True, 1)
        await behind.proxy.deliver_held()
        assert behind.heads() == [b"\x01I" + token]


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED])
async def test_an_outcome_whose_answer_was_lost_is_recorded(behind: Behind, state: State) -> None:
    token = os.urandom(16)
    async with opened(behind) as cache:
        await claim(cache, token)
        behind.proxy.swallow_replies()
        pending = asyncio.ensure_future(cache.complete("a:key", Record(state, token, PRINT, 1), ttl_ms=TTL_MS))
        await until(lambda: behind.heads()[0][1:2] != b"I")
        behind.proxy.cut_clients()
        assert await pending
        found = await cache.get("a:key")
        assert found is not None
        assert found.record.state is state


async def test_a_takeover_whose_answer_was_lost_is_its_own(behind: Behind) -> None:
    first, second = os.urandom(16), os.urandom(16)
    async with opened(behind) as cache:
        await claim(cache, first)
        await cache.complete("a:key", Record(State.FAILED, first, PRINT, 1), ttl_ms=TTL_MS)
        behind.proxy.swallow_replies()
        pending = claim(cache, second, RETRY)
        behind.proxy.cut_clients()
        won = await pending
        assert (won.won, won.record.attempt, won.record.token) == (True, 2, second)


async def test_a_release_whose_answer_was_lost_leaves_the_key_free(behind: Behind) -> None:
    token = os.urandom(16)
    async with opened(behind) as cache:
        await claim(cache, token)
        behind.proxy.swallow_replies()
        pending = asyncio.ensure_future(cache.release("a:key", token=token))
        behind.proxy.cut_clients()
        await pending
        assert behind.heads() == []
        assert (await claim(cache, os.urandom(16))).record.attempt == 1


async def test_a_claim_that_was_given_up_on_is_withdrawn(behind: Behind) -> None:
    token = os.urandom(16)
    async with opened(behind, timeout=2) as cache:
        behind.proxy.swallow_replies()
        pending = claim(cache, token)
        await until(lambda: behind.heads() == [b"\x01I" + token])
        with pytest.raises(CacheUnavailable):
            await pending
        behind.proxy.cut_clients()
        await until(lambda: behind.heads() == [])


async def test_a_claim_that_arrives_behind_its_withdrawal_is_not_made(behind: Behind) -> None:
    """It was held by the network, and given up on; the withdrawal found nothing, and was final."""
    token = os.urandom(16)
    async with opened(behind, timeout=2) as cache:
        behind.proxy.hold_requests()
        with pytest.raises(CacheUnavailable):
            await claim(cache, token)
        behind.proxy.cut_clients()
        line = line_of(cache)
        await until(lambda: is_quiet(line))
        await behind.proxy.deliver_held()
        assert behind.heads() == []


@contextmanager
def inserting(behind: Behind) -> Iterator[None]:
    """Somebody else inserts the row, and has not committed it yet: a claim waits for the end of that."""
    address = f"host=127.0.0.1 port={behind.server.port} user=postgres dbname={behind.database}"
    with psycopg.connect(address) as connection:
        connection.execute("INSERT INTO oncegate_records VALUES ('a:key', '', 0)")
        yield
        connection.rollback()


async def test_a_claim_that_is_won_late_is_adopted(behind: Behind) -> None:
    token, adopted = os.urandom(16), list[Claim]()
    request = ClaimRequest(token, PRINT, LEASE_MS, RETENTION_MS)
    async with opened(behind) as cache:
        line = line_of(cache)
        with inserting(behind):
            set_timeout(line, 0.2)
            with pytest.raises(CacheUnavailable, match="in time"):
                await cache.claim("a:key", request, adopt=adopted.append)
        await until(lambda: len(adopted) == 1)
        assert behind.heads() == [b"\x01I" + token]
        assert adopted[0].record.token == token


async def test_a_claim_that_waits_for_a_lock_beyond_its_time_is_not_made(behind: Behind) -> None:
    async with opened(behind, timeout=1) as cache:
        line = line_of(cache)
        with inserting(behind):
            with pytest.raises(CacheUnavailable):
                await claim(cache, os.urandom(16))
            waiting = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            await until(lambda: not behind.server.execute(waiting))
        await until(lambda: is_quiet(line))
        assert behind.heads() == []


async def test_a_claim_whose_caller_was_cancelled_is_withdrawn(behind: Behind) -> None:
    async with opened(behind) as cache:
        pending = claim(cache, os.urandom(16))
        await asyncio.sleep(0)
        pending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pending
        line = line_of(cache)
        await until(lambda: is_quiet(line))
        assert behind.heads() == []


async def test_a_withdrawal_whose_answers_are_lost_again_and_again_goes_on(behind: Behind) -> None:
    """A decision gives up after a few tries; a claim in doubt is not left for that."""
    token = os.urandom(16)
    async with opened(behind, timeout=2) as cache:
        line = line_of(cache)
        put, lost = line.rows.put, list[Step]()

        def losing(step: Step, then: Callable[[Reply], None]) -> None:
            if isinstance(step, Swap) and step.expected is Expected.HEAD and len(lost) < 2 * MOST_TRIES:
                lost.append(step)
                asyncio.get_running_loop().call_soon(then, AnswerLost("on its way"))
            else:
                put(step, then)

        behind.proxy.swallow_replies()
        pending = claim(cache, token)
        await until(lambda: behind.heads() == [b"\x01I" + token])
        line.rows.put = losing  # type: ignore[method-assign]  # loses the releases, as a network does
        with pytest.raises(CacheUnavailable):
            await pending
        behind.proxy.cut_clients()
        await until(lambda: behind.heads() == [])
        assert len(lost) == 2 * MOST_TRIES
