"""An execution's success is recorded in one step with its submission's life; on a real Redis, one script at a time.

Rules of docs/contract.md: R8.18.
"""

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from time import monotonic
from uuid import uuid4

import pytest

from oncegate.cache.callbacks import callbacks
from oncegate.cache.record import ClaimRequest, Record, State, StoredResponse
from oncegate.cache.redis.executions import SubmissionLives
from oncegate.cache.redis.store import RedisCache
from oncegate.middleware.rules.keys.key import execution_key
from oncegate.testing.store import PRINT, A, B
from testing.servers import RedisServer

TTL, AHEAD, SHORT = 600_000, 1000, 60_000
"""In ms: of the outcome; how much longer its submission lives; how long that has to live before."""
OTHER = b"another payload."
ACCEPTED = StoredResponse(202, (), b"{}", 1)
_numbers = count()


@pytest.fixture
async def cache(redis_server: RedisServer) -> AsyncIterator[RedisCache]:
    opened = RedisCache.from_url(redis_server.url, timeout=30)
    opened.tie(AHEAD)
    yield opened
    await opened.close()


async def submitted(cache: RedisCache, print_: bytes = PRINT, *, accepted: bool = True) -> tuple[str, str]:
    """A submission, and where its execution's record is, which is in flight for `A`."""
    key = f"test:{uuid4().hex}:{next(_numbers)}"
    await cache.claim(key, ClaimRequest(B, print_, SHORT, 0, submission=accepted))
    outcome = Record(State.SUCCEEDED, B, print_, 1, ACCEPTED, submission=accepted)
    assert await cache.complete(key, outcome, ttl_ms=SHORT)
    assert cache.submission_left_ms(key) == 0, "it is no execution"
    return key, await claimed(cache, key)


async def claimed(cache: RedisCache, key: str) -> str:
    execution = execution_key(key, "ledger")
    assert (await cache.claim(execution, ClaimRequest(A, PRINT, TTL, TTL))).won
    return execution


async def completed(cache: RedisCache, execution: str, state: State = State.SUCCEEDED, token: bytes = A) -> bool:
    return await cache.complete(execution, Record(state, token, PRINT, 1, StoredResponse(200, (), b"1", 1)), ttl_ms=TTL)


async def left(cache: RedisCache, key: str) -> int:
    found = await cache.peek(key)
    return 0 if found is None else found.remaining_ms


async def test_the_submission_lives_for_longer_than_the_success(cache: RedisCache) -> None:
    key, execution = await submitted(cache)
    assert await completed(cache, execution)
    assert TTL - SHORT < await left(cache, execution) <= TTL < await left(cache, key) <= TTL + AHEAD
    assert 0 < cache.submission_left_ms(execution) <= TTL + AHEAD
    assert cache.submission_left_ms(execution) == 0, "it is told once"


async def test_by_callback_as_a_worker_records_it_the_submission_lives_as_long(cache: RedisCache) -> None:
    key, execution = await submitted(cache)
    loop = asyncio.get_running_loop()
    recorded: asyncio.Future[bool | Exception] = loop.create_future()
    outcome = Record(State.SUCCEEDED, A, PRINT, 1, StoredResponse(200, (), b"1", 1))
    callbacks(cache).start_complete(execution, outcome, loop=loop, ttl_ms=TTL, then=recorded.set_result)
    assert await recorded is True
    assert TTL < cache.submission_left_ms(execution) <= TTL + AHEAD
    assert TTL < await left(cache, key) <= TTL + AHEAD


async def test_one_that_lives_for_longer_already_does_so_still(cache: RedisCache) -> None:
    key, execution = await submitted(cache)
    await cache.outlast(key, Record(State.SUCCEEDED, B, PRINT, 1, ACCEPTED, submission=True), ttl_ms=9 * TTL)
    assert await completed(cache, execution)
    assert await left(cache, key) > 8 * TTL
    assert cache.submission_left_ms(execution) > 8 * TTL


async def test_who_has_lost_the_record_changes_neither(cache: RedisCache) -> None:
    key, execution = await submitted(cache)
    assert not await completed(cache, execution, token=B)
    assert await left(cache, key) <= SHORT
    assert cache.submission_left_ms(execution) == 0
    found = await cache.peek(execution)
    assert found is not None
    assert found.record.state is State.IN_FLIGHT


async def test_a_lost_reply_asked_for_again_is_answered_as_at_first(cache: RedisCache) -> None:
    _, execution = await submitted(cache)
    for _ in range(2):
        assert await completed(cache, execution)
        assert cache.submission_left_ms(execution) > TTL


async def test_a_failure_leaves_the_submission_as_it_is(cache: RedisCache) -> None:
    key, execution = await submitted(cache)
    assert await completed(cache, execution, State.FAILED)
    assert await left(cache, key) <= SHORT
    assert cache.submission_left_ms(execution) == 0


async def test_a_submission_that_is_gone_is_not_made_of_an_outcome(cache: RedisCache) -> None:
    key = f"test:{uuid4().hex}:gone"
    execution = await claimed(cache, key)
    assert await completed(cache, execution)
    assert await left(cache, key) == 0
    assert cache.submission_left_ms(execution) == 0


@pytest.mark.parametrize(
    ("print_", "accepted"), [(OTHER, True), (PRINT, False)], ids=["another payload", "not accepted"]
)
async def test_another_command_s_record_is_left_alone(cache: RedisCache, print_: bytes, accepted: bool) -> None:
    key, execution = await submitted(cache, print_, accepted=accepted)
    assert await completed(cache, execution)
    assert await left(cache, key) <= SHORT
    assert cache.submission_left_ms(execution) == 0


async def test_one_that_is_being_accepted_is_not_taken_for_tied(cache: RedisCache) -> None:
    key = f"test:{uuid4().hex}:accepted"
    await cache.claim(key, ClaimRequest(B, PRINT, SHORT, 0, submission=True))
    execution = await claimed(cache, key)
    assert await completed(cache, execution)
    assert cache.submission_left_ms(execution) == 0


def test_what_nobody_asks_for_is_bounded_and_old_news_are_none() -> None:
    lives = SubmissionLives(AHEAD)
    now = monotonic()
    for number in range(20_000):
        lives.note(f"k{number}", 1_000_000_000, now + 3600)
    assert lives.take("k9999") == 0
    assert lives.take("k10000") >= 1_000_000_000
    lives.note("old", 1_000_000_000, monotonic() - 1)
    assert lives.take("old") == 0
