"""Tests of claims, renewals, outcomes and releases: each row of the table of transitions, each move that it lacks."""

import asyncio
import os

import pytest

from oncegate.cache.errors import IllegalTransition
from oncegate.cache.record import DEAD_TOKEN, Record, State
from oncegate.cache.transitions import Event, Resolution, targets
from oncegate.testing.store import (
    LEASE,
    OTHER_PRINT,
    OUTCOMES,
    PRINT,
    RESPONSE,
    RETENTION,
    RETRY,
    SLACK_MS,
    TTL,
    A,
    B,
    C,
    Store,
    about,
    bring_to,
    claim,
    complete,
    held_in,
    leave,
    reads,
    resolve,
    seen,
)


async def can_do_nothing(store: Store, token: bytes) -> None:
    """Who has ``token`` owns nothing."""
    before = await seen(store)
    assert not await complete(store, token)
    assert not await store.cache.renew(store.key, token=token, lease_ms=LEASE)
    assert not await store.cache.release(store.key, token=token)
    assert await seen(store) == before


class Claims:
    """Claims, renewals, outcomes and releases."""

    # -- the table, row by row

    async def test_an_absent_record_is_claimed_as_the_first_attempt(self, store: Store) -> None:
        won = await claim(store, A)
        assert won.won
        assert won.record == Record(State.IN_FLIGHT, A, PRINT, 1, retention_ms=RETENTION)
        assert won.remaining_ms == LEASE + RETENTION
        held = await held_in(store)
        assert held.record == won.record
        assert not held.won
        assert about(held.remaining_ms, LEASE + RETENTION)

    @pytest.mark.parametrize(
        ("state", "lapsed"), [(State.FAILED, False), (State.UNKNOWN, False), (State.UNKNOWN, True)]
    )
    async def test_a_failed_or_unknown_record_is_taken_over_as_the_next_attempt(
        self, store: Store, state: State, lapsed: bool
    ) -> None:
        await bring_to(store, state, lapsed=lapsed)
        await leave(store, 300_000)
        won = await claim(store, B, RETRY)
        assert won.won
        assert (won.record.state, won.record.token, won.record.attempt) == (State.IN_FLIGHT, B, 2)
        assert won.record.found is state
        assert about(won.record.found_ms, 300_000)
        assert won.record.response is None
        assert won.remaining_ms == LEASE + RETENTION

    @pytest.mark.parametrize("outcome", OUTCOMES)
    @pytest.mark.parametrize("source", [State.IN_FLIGHT, State.UNKNOWN, State.ABSENT])
    async def test_an_owner_completes_in_flight_lapsed_or_lapsed_away(
        self, store: Store, source: State, outcome: State
    ) -> None:
        await bring_to(store, source, lapsed=True)
        assert await complete(store, A, outcome)
        held = await held_in(store)
        assert held.record == Record(outcome, A, PRINT, 1, RESPONSE)
        assert about(held.remaining_ms, TTL)

    async def test_a_release_gives_a_lapsed_record_back_to_its_owner(self, store: Store) -> None:
        """That one may live, and know its outcome: nobody else has executed anything since."""
        await claim(store, A)
        await leave(store, RETENTION // 2)
        taken = await claim(store, B, RETRY)
        assert (taken.won, taken.record.attempt) == (True, 2)
        assert not await store.cache.complete(store.key, Record(State.SUCCEEDED, A, PRINT, 1, RESPONSE), ttl_ms=TTL)
        assert await store.cache.release(store.key, token=B)
        held = await held_in(store)
        assert (held.record.state, held.record.lapsed, held.record.attempt) == (State.UNKNOWN, True, 1)
        assert not await store.cache.release(store.key, token=B)
        assert await store.cache.renew(store.key, token=A, lease_ms=LEASE)
        assert await reads(store) is State.IN_FLIGHT
        assert await store.cache.complete(store.key, Record(State.SUCCEEDED, A, PRINT, 1, RESPONSE), ttl_ms=TTL)
        assert (await held_in(store)).record == Record(State.SUCCEEDED, A, PRINT, 1, RESPONSE)

    async def test_a_release_gives_back_what_a_lapsed_owner_had_found(self, store: Store) -> None:
        await bring_to(store, State.FAILED)
        before = (await held_in(store)).record.attempt
        await claim(store, B, RETRY)
        await leave(store, RETENTION // 2)
        await claim(store, C, RETRY)
        assert await store.cache.release(store.key, token=C)
        assert await store.cache.release(store.key, token=B)
        held = await held_in(store)
        assert (held.record.state, held.record.attempt) == (State.FAILED, before)

    @pytest.mark.parametrize("lapsed", [False, True])
    @pytest.mark.parametrize("found", [State.ABSENT, State.FAILED, State.UNKNOWN])
    async def test_a_release_restores_what_the_attempt_found(self, store: Store, found: State, lapsed: bool) -> None:
        await bring_to(store, found)
        if found is not State.ABSENT:
            await leave(store, 300_000)
        attempt = (await claim(store, B, RETRY)).record.attempt
        if lapsed:
            await leave(store, RETENTION)
            assert await reads(store) is State.UNKNOWN
        assert await store.cache.release(store.key, token=B)
        held = await store.cache.get(store.key)
        if found is State.ABSENT:
            assert held is None
            return
        assert held is not None
        assert (held.record.state, held.record.attempt) == (found, attempt - 1)
        if not held.record.lapsed:
            assert held.record == Record(found, DEAD_TOKEN, PRINT, attempt - 1)
        assert about(held.remaining_ms, 300_000)
        again = await claim(store, C, RETRY)
        assert (again.won, again.record.attempt) == (True, attempt)

    @pytest.mark.parametrize("lapsed", [False, True])
    async def test_an_owner_renews_in_flight_or_lapsed(self, store: Store, lapsed: bool) -> None:
        await claim(store, A)
        await leave(store, RETENTION - 1 if lapsed else RETENTION + SLACK_MS)
        assert await store.cache.renew(store.key, token=A, lease_ms=2 * LEASE)
        held = await held_in(store)
        assert held.record.state is State.IN_FLIGHT
        assert about(held.remaining_ms, 2 * LEASE + RETENTION)

    async def test_a_lease_lapses_exactly_at_the_records_own_retention(self, store: Store) -> None:
        await claim(store, A)
        await leave(store, RETENTION + SLACK_MS)
        assert await reads(store) is State.IN_FLIGHT
        await leave(store, RETENTION)
        held = await held_in(store)
        assert (held.record.state, held.record.lapsed, held.record.token) == (State.UNKNOWN, True, A)

    @pytest.mark.parametrize("state", [State.IN_FLIGHT, *OUTCOMES])
    async def test_every_state_ends_with_its_time(self, store: Store, state: State) -> None:
        await bring_to(store, state)
        store.pass_time(LEASE + RETENTION if state is State.IN_FLIGHT else TTL)
        assert await reads(store) is State.ABSENT
        assert (await claim(store, B)).record.attempt == 1

    # -- the moves that the table lacks

    @pytest.mark.parametrize("source", [State.SUCCEEDED, State.FAILED, State.UNKNOWN, State.IN_FLIGHT])
    async def test_a_claim_without_leave_to_take_over_writes_nothing(self, store: Store, source: State) -> None:
        await bring_to(store, source)
        before = await seen(store)
        answer = await claim(store, B)
        assert not answer.won
        assert (answer.record.state, answer.record.token) == (source, A)
        assert await seen(store) == before

    @pytest.mark.parametrize("source", [State.SUCCEEDED, State.IN_FLIGHT])
    async def test_a_live_or_succeeded_record_is_never_taken_over(self, store: Store, source: State) -> None:
        await bring_to(store, source)
        before = await seen(store)
        assert not (await claim(store, B, RETRY)).won
        assert await seen(store) == before
        assert targets(source, Event.CLAIM) == frozenset()

    @pytest.mark.parametrize("state", [State.SUCCEEDED, State.IN_FLIGHT])
    async def test_leave_to_take_over_what_the_table_does_not_allow_is_refused(
        self, store: Store, state: State
    ) -> None:
        with pytest.raises(IllegalTransition):
            await claim(store, A, frozenset({state}))

    @pytest.mark.parametrize("state", [State.ABSENT, State.IN_FLIGHT])
    async def test_an_attempt_cannot_end_in_a_state_that_is_no_outcome(self, store: Store, state: State) -> None:
        await claim(store, A)
        before = await seen(store)
        with pytest.raises(IllegalTransition):
            await complete(store, A, state)
        assert await seen(store) == before

    @pytest.mark.parametrize("source", [State.ABSENT, *OUTCOMES])
    async def test_what_is_not_in_flight_is_neither_renewed_nor_released(self, store: Store, source: State) -> None:
        await bring_to(store, source)
        before = await seen(store)
        assert not await store.cache.renew(store.key, token=A, lease_ms=LEASE)
        assert not await store.cache.release(store.key, token=A)
        assert await seen(store) == before

    @pytest.mark.parametrize("source", [State.IN_FLIGHT, *OUTCOMES])
    async def test_a_stranger_neither_completes_nor_renews_nor_releases(self, store: Store, source: State) -> None:
        await bring_to(store, source)
        await can_do_nothing(store, B)

    @pytest.mark.parametrize("first", OUTCOMES)
    @pytest.mark.parametrize("second", OUTCOMES)
    async def test_a_second_complete_has_succeeded_and_changes_nothing(
        self, store: Store, first: State, second: State
    ) -> None:
        await claim(store, A)
        assert await complete(store, A, first)
        before = await seen(store)
        await leave(store, 300_000)
        assert await complete(store, A, second)
        assert await seen(store) == before
        held = await held_in(store)
        assert about(held.remaining_ms, 300_000)

    # -- who owns what

    async def test_a_claim_that_finds_its_own_token_is_its_own(self, store: Store) -> None:
        await claim(store, A)
        await leave(store, RETENTION + LEASE // 2)
        again = await claim(store, A)
        assert (again.won, again.record.attempt) == (True, 1)
        assert about(again.remaining_ms, RETENTION + LEASE // 2)

    async def test_asking_again_for_a_takeover_does_not_count_another_attempt(self, store: Store) -> None:
        await bring_to(store, State.FAILED)
        first = await claim(store, B, RETRY)
        again = await claim(store, B, RETRY)
        assert again.won
        assert again.record == first.record

    @pytest.mark.parametrize("state", [State.FAILED, State.UNKNOWN])
    async def test_another_fingerprint_takes_nothing_over(self, store: Store, state: State) -> None:
        await bring_to(store, state, lapsed=True)
        before = await seen(store)
        answer = await claim(store, B, RETRY, fingerprint=OTHER_PRINT)
        assert (answer.won, answer.record.fingerprint) == (False, PRINT)
        assert await seen(store) == before

    @pytest.mark.parametrize(("state", "allowed"), [(State.FAILED, State.UNKNOWN), (State.UNKNOWN, State.FAILED)])
    async def test_only_the_states_that_the_policy_allows_are_taken_over(
        self, store: Store, state: State, allowed: State
    ) -> None:
        await bring_to(store, state, lapsed=True)
        assert not (await claim(store, B, frozenset({allowed}))).won

    async def test_after_a_takeover_the_late_owner_can_do_nothing(self, store: Store) -> None:
        await bring_to(store, State.UNKNOWN, lapsed=True)
        assert (await claim(store, B, RETRY)).won
        await can_do_nothing(store, A)
        assert await complete(store, B, State.SUCCEEDED, attempt=2)
        assert not await complete(store, A, State.FAILED)
        held = await held_in(store)
        assert (held.record.state, held.record.token, held.record.attempt) == (State.SUCCEEDED, B, 2)

    async def test_attempts_are_numbered_across_takeovers_and_releases(self, store: Store) -> None:
        numbers = []
        for _ in range(3):
            token = os.urandom(16)
            numbers.append((await claim(store, token, RETRY)).record.attempt)
            await complete(store, token, State.FAILED, attempt=numbers[-1])
            undone = os.urandom(16)
            numbers.append((await claim(store, undone, RETRY)).record.attempt)
            await store.cache.release(store.key, token=undone)
        assert numbers == [1, 2, 2, 3, 3, 4]

    async def test_the_lease_is_judged_by_the_records_own_retention(self, store: Store) -> None:
        """Two gateways with different settings: the one with the long retention must not take the other's lease for lapsed."""
        await claim(store, A, lease_ms=LEASE, retention_ms=1_000)
        answer = await claim(store, B, RETRY, lease_ms=1_000, retention_ms=10 * RETENTION)
        assert (answer.won, answer.record.state) == (False, State.IN_FLIGHT)
        await store.cache.renew(store.key, token=A, lease_ms=LEASE)
        held = await held_in(store)
        assert about(held.remaining_ms, LEASE + 1_000)

    @pytest.mark.parametrize("state", [State.ABSENT, State.UNKNOWN])
    async def test_of_many_claims_at_once_exactly_one_is_won(self, store: Store, state: State) -> None:
        await bring_to(store, state, lapsed=True)
        tokens = [os.urandom(16) for _ in range(200)]
        answers = await asyncio.gather(*[claim(store, token, RETRY) for token in tokens])
        winners = [token for token, answer in zip(tokens, answers, strict=True) if answer.won]
        assert len(winners) == 1
        assert all(answer.record.token == winners[0] for answer in answers)

    @pytest.mark.parametrize("renewed_first", [True, False])
    async def test_of_a_renewal_and_a_takeover_at_once_one_is_made(self, store: Store, renewed_first: bool) -> None:
        """The lease has lapsed. A renewed record has the same bytes, for longer: who saw it lapsed must not take it over."""
        await claim(store, A)
        owner, taken_over = A, 0
        for _ in range(20):
            await leave(store, RETENTION // 2)
            rival = os.urandom(16)
            renewing = store.cache.renew(store.key, token=owner, lease_ms=LEASE)
            claiming = claim(store, rival, RETRY)
            if renewed_first:
                renewed, answer = await asyncio.gather(renewing, claiming)
            else:
                answer, renewed = await asyncio.gather(claiming, renewing)
            assert renewed != answer.won
            owner, taken_over = (rival, taken_over + 1) if answer.won else (owner, taken_over)
            held = await held_in(store)
            assert (held.record.state, held.record.token) == (State.IN_FLIGHT, owner)
            assert held.record.attempt == 1 + taken_over

    @pytest.mark.parametrize("renewed_first", [True, False])
    async def test_of_a_renewal_and_a_resolution_at_once_one_is_made(self, store: Store, renewed_first: bool) -> None:
        """As above: an attempt that lives is resolved by force alone."""
        for _ in range(20):
            assert (await claim(store, A)).won
            await leave(store, RETENTION // 2)
            renewing = store.cache.renew(store.key, token=A, lease_ms=LEASE)
            if renewed_first:
                renewed, outcome = await asyncio.gather(renewing, resolve(store, None))
            else:
                outcome, renewed = await asyncio.gather(resolve(store, None), renewing)
            assert outcome is (Resolution.IN_FLIGHT if renewed else Resolution.RESOLVED)
            assert await reads(store) is (State.IN_FLIGHT if renewed else State.ABSENT)
            await resolve(store, None, force=True)
