"""The mark of a submission stays with its record, in every state, and nothing else is taken for it."""

import pytest

from oncegate.cache.record import State, StoredResponse, Trace
from tests.cache.stores import Store
from tests.cache.test_behaviours import OUTCOMES, PRINT, RESPONSE, RETENTION, RETRY, TTL, A, B, claim


@pytest.mark.parametrize("marked", [True, False])
async def test_a_submission_is_marked_for_as_long_as_it_is_in_flight(store: Store, marked: bool) -> None:
    assert (await claim(store, A, submission=marked)).record.submission is marked
    found = await claim(store, B)
    assert found.record.state is State.IN_FLIGHT
    assert found.record.submission is marked
    store.leave(RETENTION - 1)
    lapsed = await store.cache.get(store.key)
    assert lapsed is not None
    assert lapsed.record.state is State.UNKNOWN
    assert lapsed.record.submission is marked


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("response", [RESPONSE, None])
@pytest.mark.parametrize("state", OUTCOMES)
async def test_the_outcome_of_a_submission_is_marked(
    store: Store, state: State, response: StoredResponse | None, marked: bool
) -> None:
    await claim(store, A, submission=marked)
    assert await store.cache.complete(
        store.key,
        token=A,
        fingerprint=PRINT,
        attempt=1,
        state=state,
        response=response,
        ttl_ms=TTL,
        submission=marked,
    )
    for held in (await claim(store, B), await store.cache.get(store.key), await store.cache.peek(store.key)):
        assert held is not None
        assert held.record.state is state
        assert held.record.submission is marked


@pytest.mark.parametrize("marked", [True, False])
async def test_a_released_takeover_of_a_submission_leaves_it_marked(store: Store, marked: bool) -> None:
    await claim(store, A, submission=marked)
    store.leave(RETENTION - 1)
    taken = await claim(store, B, RETRY, submission=marked)
    assert taken.won
    assert taken.record.submission is marked
    assert await store.cache.release(store.key, token=B)
    held = await store.cache.get(store.key)
    assert held is not None
    assert held.record.state is State.UNKNOWN
    assert held.record.submission is marked


@pytest.mark.parametrize("marked", [True, False])
async def test_what_an_operator_resolves_keeps_the_mark_that_he_gives(store: Store, marked: bool) -> None:
    await claim(store, A, submission=marked)
    store.leave(RETENTION - 1)
    await store.cache.resolve(store.key, state=State.SUCCEEDED, response=RESPONSE, ttl_ms=TTL, submission=marked)
    held = await store.cache.get(store.key)
    assert held is not None
    assert held.record.state is State.SUCCEEDED
    assert held.record.submission is marked


async def test_nothing_in_a_trace_is_taken_for_the_mark(store: Store) -> None:
    await claim(store, A, trace=Trace('{"a":1', 1))
    store.leave(RETENTION - 1)
    assert (await claim(store, B, RETRY, trace=Trace('{"a":1', 1))).won
    assert await store.cache.release(store.key, token=B)
    held = await store.cache.get(store.key)
    assert held is not None
    assert not held.record.submission
