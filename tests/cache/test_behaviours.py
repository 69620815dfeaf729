"""What every cache promises: each row of the table of transitions, every move that it lacks, and who owns what.

Rules of docs/contract.md: R1.1, R5.11, R5.20, R5.21, R5.22, R5.23, R5.30.
"""

import asyncio
import os

import pytest

from oncegate.cache.claim import Claim
from oncegate.cache.codec import encode
from oncegate.cache.errors import IllegalTransition, RecordUnreadable
from oncegate.cache.record import DEAD_TOKEN, TRANSITIONS, Event, Record, State, StoredResponse, targets
from tests.cache.stores import SLACK_MS, Store

A, B, C = (os.urandom(16) for _ in range(3))
PRINT, OTHER_PRINT = b"p" * 16, b"q" * 16
LEASE, RETENTION, TTL = 100_000, 400_000, 900_000
RETRY = frozenset({State.FAILED, State.UNKNOWN})
RESPONSE = StoredResponse(
    201, ((b"x-a", b"1"), (b"x-a", b"2"), (b"x-\xe9", b"\xff")), b"\x00\xffbody", 1_700_000_000_000
)
OUTCOMES = (State.SUCCEEDED, State.FAILED, State.UNKNOWN)


async def claim(store: Store, token: bytes, takeover: frozenset[State] = frozenset(), **changes: object) -> Claim:
    arguments = {"fingerprint": PRINT, "lease_ms": LEASE, "retention_ms": RETENTION, **changes}
    return await store.cache.claim(store.key, token=token, takeover=takeover, **arguments)  # type: ignore[arg-type]  # options of the test's own


async def complete(store: Store, token: bytes, state: State = State.SUCCEEDED, attempt: int = 1) -> bool:
    return await store.cache.complete(
        store.key, token=token, fingerprint=PRINT, attempt=attempt, state=state, response=RESPONSE, ttl_ms=TTL
    )


async def reads(store: Store) -> State:
    held = await store.cache.get(store.key)
    return State.ABSENT if held is None else held.record.state


def about(actual: int, expected: int) -> bool:
    """Whether a remaining time is ``expected``, less what may have passed on Redis's clock; never more."""
    return expected - SLACK_MS < actual <= expected


async def bring_to(store: Store, state: State, *, lapsed: bool = False) -> None:
    """A record in ``state`` whose last owner is A."""
    if state is State.ABSENT:
        return
    await claim(store, A)
    if state is State.UNKNOWN and lapsed:
        store.leave(RETENTION - 1)
    elif state is not State.IN_FLIGHT:
        assert await complete(store, A, state)
    assert await reads(store) is state


# -- the table, row by row


async def test_an_absent_record_is_claimed_as_the_first_attempt(store: Store) -> None:
    won = await claim(store, A)
    assert won.won
    assert won.record == Record(State.IN_FLIGHT, A, PRINT, 1, retention_ms=RETENTION)
    assert won.remaining_ms == LEASE + RETENTION
    held = await store.cache.get(store.key)
    assert held is not None
    assert held.record == won.record
    assert not held.won
    assert about(held.remaining_ms, LEASE + RETENTION)


@pytest.mark.parametrize(("state", "lapsed"), [(State.FAILED, False), (State.UNKNOWN, False), (State.UNKNOWN, True)])
async def test_a_failed_or_unknown_record_is_taken_over_as_the_next_attempt(
    store: Store, state: State, lapsed: bool
) -> None:
    await bring_to(store, state, lapsed=lapsed)
    store.leave(300_000)
    won = await claim(store, B, RETRY)
    assert won.won
    assert (won.record.state, won.record.token, won.record.attempt) == (State.IN_FLIGHT, B, 2)
    assert won.record.found is state
    assert about(won.record.found_ms, 300_000)
    assert won.record.response is None
    assert won.remaining_ms == LEASE + RETENTION


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("source", [State.IN_FLIGHT, State.UNKNOWN, State.ABSENT])
async def test_an_owner_completes_in_flight_lapsed_or_lapsed_away(store: Store, source: State, outcome: State) -> None:
    await bring_to(store, source, lapsed=True)
    assert await complete(store, A, outcome)
    held = await store.cache.get(store.key)
    assert held is not None
    assert held.record == Record(outcome, A, PRINT, 1, RESPONSE)
    assert about(held.remaining_ms, TTL)


@pytest.mark.parametrize("lapsed", [False, True])
@pytest.mark.parametrize("found", [State.ABSENT, State.FAILED, State.UNKNOWN])
async def test_a_release_restores_what_the_attempt_found(store: Store, found: State, lapsed: bool) -> None:
    await bring_to(store, found)
    if found is not State.ABSENT:
        store.leave(300_000)
    attempt = (await claim(store, B, RETRY)).record.attempt
    if lapsed:
        store.leave(RETENTION)
        assert await reads(store) is State.UNKNOWN
    assert await store.cache.release(store.key, token=B)
    held = await store.cache.get(store.key)
    if found is State.ABSENT:
        assert held is None
        return
    assert held is not None
    assert held.record == Record(found, DEAD_TOKEN, PRINT, attempt - 1)
    assert about(held.remaining_ms, 300_000)
    again = await claim(store, C, RETRY)
    assert (again.won, again.record.attempt) == (True, attempt)


@pytest.mark.parametrize("lapsed", [False, True])
async def test_an_owner_renews_in_flight_or_lapsed(store: Store, lapsed: bool) -> None:
    await claim(store, A)
    store.leave(RETENTION - 1 if lapsed else RETENTION + SLACK_MS)
    assert await store.cache.extend(store.key, token=A, lease_ms=2 * LEASE)
    held = await store.cache.get(store.key)
    assert held is not None
    assert held.record.state is State.IN_FLIGHT
    assert about(held.remaining_ms, 2 * LEASE + RETENTION)


async def test_a_lease_lapses_exactly_at_the_records_own_retention(store: Store) -> None:
    await claim(store, A)
    store.leave(RETENTION + SLACK_MS)
    assert await reads(store) is State.IN_FLIGHT
    store.leave(RETENTION)
    held = await store.cache.get(store.key)
    assert held is not None
    assert (held.record.state, held.record.lapsed, held.record.token) == (State.UNKNOWN, True, A)


@pytest.mark.parametrize("state", [State.IN_FLIGHT, *OUTCOMES])
async def test_every_state_ends_with_its_time(store: Store, state: State) -> None:
    await bring_to(store, state)
    store.pass_time(LEASE + RETENTION if state is State.IN_FLIGHT else TTL)
    assert await reads(store) is State.ABSENT
    assert (await claim(store, B)).record.attempt == 1


# -- the moves that the table lacks


@pytest.mark.parametrize("source", [State.SUCCEEDED, State.FAILED, State.UNKNOWN, State.IN_FLIGHT])
async def test_a_claim_without_leave_to_take_over_writes_nothing(store: Store, source: State) -> None:
    await bring_to(store, source)
    before = store.raw()
    answer = await claim(store, B)
    assert not answer.won
    assert (answer.record.state, answer.record.token) == (source, A)
    assert store.raw() == before


@pytest.mark.parametrize("source", [State.SUCCEEDED, State.IN_FLIGHT])
async def test_a_live_or_succeeded_record_is_never_taken_over(store: Store, source: State) -> None:
    await bring_to(store, source)
    before = store.raw()
    assert not (await claim(store, B, RETRY)).won
    assert store.raw() == before
    assert targets(source, Event.CLAIM) == frozenset()


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.IN_FLIGHT])
async def test_leave_to_take_over_what_the_table_does_not_allow_is_refused(store: Store, state: State) -> None:
    with pytest.raises(IllegalTransition):
        await claim(store, A, frozenset({state}))


@pytest.mark.parametrize("state", [State.ABSENT, State.IN_FLIGHT])
async def test_an_attempt_cannot_end_in_a_state_that_is_no_outcome(store: Store, state: State) -> None:
    await claim(store, A)
    before = store.raw()
    with pytest.raises(IllegalTransition):
        await complete(store, A, state)
    assert store.raw() == before


@pytest.mark.parametrize("source", [State.ABSENT, *OUTCOMES])
async def test_what_is_not_in_flight_is_neither_renewed_nor_released(store: Store, source: State) -> None:
    await bring_to(store, source)
    before = store.raw()
    assert not await store.cache.extend(store.key, token=A, lease_ms=LEASE)
    assert not await store.cache.release(store.key, token=A)
    assert store.raw() == before


@pytest.mark.parametrize("source", [State.IN_FLIGHT, *OUTCOMES])
async def test_a_stranger_neither_completes_nor_renews_nor_releases(store: Store, source: State) -> None:
    await bring_to(store, source)
    before = store.raw()
    assert not await complete(store, B)
    assert not await store.cache.extend(store.key, token=B, lease_ms=LEASE)
    assert not await store.cache.release(store.key, token=B)
    assert store.raw() == before


@pytest.mark.parametrize("first", OUTCOMES)
@pytest.mark.parametrize("second", OUTCOMES)
async def test_a_second_complete_has_succeeded_and_changes_nothing(store: Store, first: State, second: State) -> None:
    await claim(store, A)
    assert await complete(store, A, first)
    before = store.raw()
    store.leave(300_000)
    assert await complete(store, A, second)
    assert store.raw() == before
    held = await store.cache.get(store.key)
    assert held is not None
    assert about(held.remaining_ms, 300_000)


def test_every_pair_of_state_and_event_is_either_a_row_or_refused() -> None:
    """The tests above are written against this list: a new row must come with a test of its own."""
    assert {(row.source.name, row.event.name) for row in TRANSITIONS} == {
        ("ABSENT", "CLAIM"), ("FAILED", "CLAIM"), ("UNKNOWN", "CLAIM"),
        ("IN_FLIGHT", "RENEW"), ("UNKNOWN", "RENEW"),
        ("IN_FLIGHT", "COMPLETE"), ("UNKNOWN", "COMPLETE"), ("ABSENT", "COMPLETE"),
        ("IN_FLIGHT", "RELEASE"), ("UNKNOWN", "RELEASE"), ("IN_FLIGHT", "LAPSE"),
        ("UNKNOWN", "RESOLVE"), ("IN_FLIGHT", "RESOLVE"),
        ("IN_FLIGHT", "EXPIRE"), ("SUCCEEDED", "EXPIRE"), ("FAILED", "EXPIRE"), ("UNKNOWN", "EXPIRE"),
    }  # fmt: skip


# -- who owns what


async def test_a_claim_that_finds_its_own_token_is_its_own(store: Store) -> None:
    await claim(store, A)
    store.leave(RETENTION + LEASE // 2)
    again = await claim(store, A)
    assert (again.won, again.record.attempt) == (True, 1)
    assert about(again.remaining_ms, RETENTION + LEASE // 2)


async def test_asking_again_for_a_takeover_does_not_count_another_attempt(store: Store) -> None:
    await bring_to(store, State.FAILED)
    first = await claim(store, B, RETRY)
    again = await claim(store, B, RETRY)
    assert again.won
    assert again.record == first.record


@pytest.mark.parametrize("state", [State.FAILED, State.UNKNOWN])
async def test_another_fingerprint_takes_nothing_over(store: Store, state: State) -> None:
    await bring_to(store, state, lapsed=True)
    before = store.raw()
    answer = await claim(store, B, RETRY, fingerprint=OTHER_PRINT)
    assert (answer.won, answer.record.fingerprint) == (False, PRINT)
    assert store.raw() == before


@pytest.mark.parametrize(("state", "allowed"), [(State.FAILED, State.UNKNOWN), (State.UNKNOWN, State.FAILED)])
async def test_only_the_states_that_the_policy_allows_are_taken_over(
    store: Store, state: State, allowed: State
) -> None:
    await bring_to(store, state, lapsed=True)
    assert not (await claim(store, B, frozenset({allowed}))).won


async def test_after_a_takeover_the_late_owner_can_do_nothing(store: Store) -> None:
    await bring_to(store, State.UNKNOWN, lapsed=True)
    assert (await claim(store, B, RETRY)).won
    before = store.raw()
    assert not await complete(store, A)
    assert not await store.cache.extend(store.key, token=A, lease_ms=LEASE)
    assert not await store.cache.release(store.key, token=A)
    assert store.raw() == before
    assert await complete(store, B, State.SUCCEEDED, attempt=2)
    assert not await complete(store, A, State.FAILED)
    held = await store.cache.get(store.key)
    assert held is not None
    assert (held.record.state, held.record.token, held.record.attempt) == (State.SUCCEEDED, B, 2)


async def test_a_release_after_a_takeover_does_not_bring_the_late_owner_back(store: Store) -> None:
    await bring_to(store, State.UNKNOWN, lapsed=True)
    await claim(store, B, RETRY)
    assert await store.cache.release(store.key, token=B)
    assert not await complete(store, A)
    assert await reads(store) is State.UNKNOWN


async def test_attempts_are_numbered_across_takeovers_and_releases(store: Store) -> None:
    numbers = []
    for _ in range(3):
        token = os.urandom(16)
        numbers.append((await claim(store, token, RETRY)).record.attempt)
        await complete(store, token, State.FAILED, attempt=numbers[-1])
        undone = os.urandom(16)
        numbers.append((await claim(store, undone, RETRY)).record.attempt)
        await store.cache.release(store.key, token=undone)
    assert numbers == [1, 2, 2, 3, 3, 4]


async def test_the_lease_is_judged_by_the_records_own_retention(store: Store) -> None:
    """Two gateways with different settings: the one with the long retention must not take the other's lease for lapsed."""
    await claim(store, A, lease_ms=LEASE, retention_ms=1_000)
    answer = await claim(store, B, RETRY, lease_ms=1_000, retention_ms=10 * RETENTION)
    assert (answer.won, answer.record.state) == (False, State.IN_FLIGHT)
    await store.cache.extend(store.key, token=A, lease_ms=LEASE)
    held = await store.cache.get(store.key)
    assert held is not None
    assert about(held.remaining_ms, LEASE + 1_000)


async def test_of_many_claims_at_once_exactly_one_is_won(store: Store) -> None:
    tokens = [os.urandom(16) for _ in range(200)]
    answers = await asyncio.gather(*[claim(store, token, RETRY) for token in tokens])
    winners = [token for token, answer in zip(tokens, answers, strict=True) if answer.won]
    assert len(winners) == 1
    assert all(answer.record.token == winners[0] for answer in answers)


async def test_of_many_takeovers_at_once_exactly_one_is_won(store: Store) -> None:
    await bring_to(store, State.UNKNOWN, lapsed=True)
    answers = await asyncio.gather(*[claim(store, os.urandom(16), RETRY) for _ in range(200)])
    assert sum(answer.won for answer in answers) == 1


# -- what can't be read


VALID = encode(Record(State.SUCCEEDED, A, PRINT, 1, RESPONSE))
LAPSED = encode(Record(State.IN_FLIGHT, A, PRINT, 1, retention_ms=10 * RETENTION))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01",
        VALID[:41],
        VALID[:60],
        LAPSED[:54],
        b"\x02" + LAPSED[1:],
        VALID[:1] + b"X" + VALID[2:],
        LAPSED[:46] + b"S" + LAPSED[47:],
        VALID[:42] + b"[" + VALID[43:],
    ],
    ids=["empty", "one byte", "cut header", "cut head", "cut flight", "newer", "no state", "found", "no JSON"],
)
async def test_a_damaged_or_newer_record_is_an_error_and_is_left_alone(store: Store, data: bytes) -> None:
    store.plant(data, RETENTION)
    with pytest.raises(RecordUnreadable):
        await store.cache.get(store.key)
    with pytest.raises(RecordUnreadable):
        await claim(store, B)
    assert store.raw() == data


@pytest.mark.parametrize(
    "data", [b"\x02" + LAPSED[1:], LAPSED[:54], b"\x02" + VALID[1:]], ids=["newer and lapsed", "cut flight", "newer"]
)
async def test_a_damaged_or_newer_record_is_not_taken_over(store: Store, data: bytes) -> None:
    store.plant(data, RETENTION)
    with pytest.raises(RecordUnreadable):
        await claim(store, B, RETRY)
    assert store.raw() == data


async def test_bytes_after_a_record_in_flight_are_ignored(store: Store) -> None:
    """So that a later version can add to it."""
    store.plant(LAPSED + b"more", RETENTION)
    assert await reads(store) is State.UNKNOWN
    assert (await claim(store, B, RETRY)).won
