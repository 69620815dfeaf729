"""Outcomes of commands whose messages were acknowledged before they were executed: recorded for as long as the submission lives.

Rules of docs/contract.md: R12.17.
"""

import os
from typing import Any

import pytest

from oncegate import MemoryCache, Subscription
from oncegate.cache.record import FINGERPRINT_BYTES, TOKEN_BYTES, ClaimRequest, Record, State, StoredResponse
from oncegate.middleware.consumers.transactional import LateOutcome
from oncegate.middleware.rules.keys.key import execution_key, record_id, record_key
from testing.records import read

KEY = record_key("default", "order-7", None)
OWN = execution_key(KEY, "ledger")
PRINT = bytes(FINGERPRINT_BYTES)


async def recorded(cache: MemoryCache, **options: Any) -> bool:
    given: dict[str, Any] = {"submitted": True, "state": State.SUCCEEDED, "body": b"7"}
    late = LateOutcome(record_id(KEY), PRINT, **(given | options))
    return await Subscription("ledger", cache=cache)._late.record(late)


async def submitted(cache: MemoryCache, ttl_ms: int) -> None:
    token = os.urandom(TOKEN_BYTES)
    await cache.claim(KEY, ClaimRequest(token, PRINT, 60_000, 60_000, submission=True))
    outcome = Record(State.SUCCEEDED, token, PRINT, 1, StoredResponse(202, (), b"{}", 0), submission=True)
    await cache.complete(KEY, outcome, ttl_ms=ttl_ms)


async def test_the_record_ends_with_its_submission_s() -> None:
    """Else the key, accepted anew under another number, would be skipped as processed, and that number be missing for ever."""
    cache = MemoryCache()
    await submitted(cache, 60_000)
    assert await recorded(cache)
    found = await read(cache, OWN)
    assert (found.record.state, found.record.attempt) == (State.SUCCEEDED, 1)
    assert found.record.response
    assert found.record.response.body == b"7"
    assert 0 < found.remaining_ms < 59_100


async def test_without_a_submission_s_there_is_none() -> None:
    cache = MemoryCache()
    assert await recorded(cache)
    assert await cache.get(OWN) is None
    assert await recorded(cache, submitted=False), "a broker's message has none"
    assert await cache.get(OWN) is not None


@pytest.mark.parametrize("state", [State.IN_FLIGHT, State.FAILED, State.SUCCEEDED])
async def test_what_is_in_flight_is_waited_for_and_a_success_stands(state: State) -> None:
    """A failure may be that of an attempt before it was parked, or have been retried."""
    cache, token = MemoryCache(), os.urandom(TOKEN_BYTES)
    await cache.claim(OWN, ClaimRequest(token, PRINT, 60_000, 60_000))
    if state is not State.IN_FLIGHT:
        await cache.complete(OWN, Record(state, token, PRINT, 1, StoredResponse(200, (), b"1", 0)), ttl_ms=60_000)
    assert await recorded(cache, submitted=False) is (state is not State.IN_FLIGHT)
    record = (await read(cache, OWN)).record
    assert record.response is None or record.response.body == {State.FAILED: b"7"}.get(state, b"1")
    assert record.state is (State.IN_FLIGHT if state is State.IN_FLIGHT else State.SUCCEEDED)


async def test_another_payload_s_record_is_left_as_it_is() -> None:
    cache, token = MemoryCache(), os.urandom(TOKEN_BYTES)
    await cache.claim(OWN, ClaimRequest(token, b"x" * FINGERPRINT_BYTES, 60_000, 60_000))
    assert await recorded(cache, submitted=False)
    assert (await read(cache, OWN)).record.token == token
