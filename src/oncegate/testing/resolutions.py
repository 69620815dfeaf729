"""Tests of resolutions: what an operator says of an attempt whose outcome nobody knows."""

import asyncio
import os

import pytest

from oncegate.cache.errors import IllegalTransition
from oncegate.cache.record import DEAD_TOKEN, Record, State, StoredResponse
from oncegate.cache.transitions import Event, Resolution, targets
from oncegate.testing.claims import can_do_nothing
from oncegate.testing.store import (
    FOUND_OUT,
    OUTCOMES,
    PRINT,
    RESPONSE,
    RETENTION,
    RETRY,
    TTL,
    A,
    B,
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


class Resolutions:
    """An operator's resolutions."""

    @pytest.mark.parametrize("lapsed", [False, True])
    @pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED])
    async def test_an_unknown_outcome_is_resolved(self, store: Store, state: State, lapsed: bool) -> None:
        await bring_to(store, State.UNKNOWN, lapsed=lapsed)
        assert await resolve(store, state) is Resolution.RESOLVED
        held = await held_in(store)
        assert held.record == Record(state, DEAD_TOKEN, PRINT, 1, FOUND_OUT if state is State.SUCCEEDED else None)
        assert about(held.remaining_ms, TTL)

    async def test_a_resolved_success_is_what_a_retry_meets(self, store: Store) -> None:
        await bring_to(store, State.UNKNOWN, lapsed=True)
        await resolve(store, State.SUCCEEDED)
        answer = await claim(store, B, RETRY)
        assert not answer.won
        assert answer.record.response == FOUND_OUT

    async def test_the_attempt_number_stays_and_goes_on(self, store: Store) -> None:
        await bring_to(store, State.FAILED)
        await claim(store, B, RETRY)
        await leave(store, RETENTION)
        assert await resolve(store, State.FAILED, attempt=2) is Resolution.RESOLVED
        assert (await claim(store, os.urandom(16), RETRY)).record.attempt == 3

    @pytest.mark.parametrize("lapsed", [False, True])
    async def test_a_key_is_set_free(self, store: Store, lapsed: bool) -> None:
        await bring_to(store, State.UNKNOWN, lapsed=lapsed)
        assert await resolve(store, None) is Resolution.RESOLVED
        assert await seen(store) is None
        assert (await claim(store, B)).record.attempt == 1

    @pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED, None])
    async def test_in_flight_is_resolved_by_force_alone(self, store: Store, state: State | None) -> None:
        await bring_to(store, State.IN_FLIGHT)
        before = await seen(store)
        assert await resolve(store, state) is Resolution.IN_FLIGHT
        assert await seen(store) == before
        assert await resolve(store, state, force=True) is Resolution.RESOLVED
        assert await reads(store) is (state or State.ABSENT)

    @pytest.mark.parametrize("force", [False, True])
    @pytest.mark.parametrize("source", [State.SUCCEEDED, State.FAILED])
    @pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED, None])
    async def test_a_known_outcome_is_never_touched(
        self, store: Store, source: State, state: State | None, force: bool
    ) -> None:
        await bring_to(store, source)
        before = await seen(store)
        assert await resolve(store, state, force=force) is Resolution.SETTLED
        assert await seen(store) == before
        assert targets(source, Event.RESOLVE) == frozenset()

    async def test_nothing_is_made_where_there_is_no_record(self, store: Store) -> None:
        assert await resolve(store, State.SUCCEEDED, force=True) is Resolution.ABSENT
        assert await seen(store) is None

    @pytest.mark.parametrize("state", [State.UNKNOWN, State.IN_FLIGHT])
    async def test_what_is_no_resolution_is_refused(self, store: Store, state: State) -> None:
        await bring_to(store, State.UNKNOWN)
        before = await seen(store)
        with pytest.raises(IllegalTransition):
            await resolve(store, state)
        with pytest.raises(ValueError, match="ttl_ms"):
            await resolve(store, State.FAILED, ttl_ms=0)
        with pytest.raises(ValueError, match="no response"):
            await resolve(store, None, response=FOUND_OUT)
        assert await seen(store) == before

    @pytest.mark.parametrize("force", [False, True])
    async def test_an_attempt_that_the_operator_has_not_looked_at_is_left_alone(
        self, store: Store, force: bool
    ) -> None:
        await bring_to(store, State.UNKNOWN, lapsed=True)
        assert (await claim(store, B, RETRY)).record.attempt == 2
        await leave(store, RETENTION)
        before = await seen(store)
        assert await resolve(store, State.SUCCEEDED, attempt=1, force=force) is Resolution.OTHER_ATTEMPT
        assert await seen(store) == before

    @pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED])
    async def test_a_late_owner_can_not_undo_what_was_resolved(self, store: Store, state: State) -> None:
        await bring_to(store, State.IN_FLIGHT)
        await resolve(store, state, force=True)
        await can_do_nothing(store, A)

    async def test_a_late_success_is_recorded_where_the_key_was_set_free_and_nobody_took_it(self, store: Store) -> None:
        """The operator took it for not executed, and it was: to know that is better than to execute it once more."""
        await bring_to(store, State.IN_FLIGHT)
        await resolve(store, None, force=True)
        assert await complete(store, A)
        held = await held_in(store)
        assert (held.record.state, held.record.response) == (State.SUCCEEDED, RESPONSE)

    async def test_a_late_success_does_not_touch_who_took_the_key_that_was_set_free(self, store: Store) -> None:
        await bring_to(store, State.IN_FLIGHT)
        await resolve(store, None, force=True)
        assert (await claim(store, B)).won
        before = await seen(store)
        assert not await complete(store, A)
        assert await seen(store) == before

    async def test_of_many_resolutions_at_once_one_is_made(self, store: Store) -> None:
        await bring_to(store, State.UNKNOWN, lapsed=True)
        states = [State.SUCCEEDED, State.FAILED] * 20
        outcomes = await asyncio.gather(*[resolve(store, state) for state in states])
        assert sorted(outcomes) == [Resolution.RESOLVED] + [Resolution.SETTLED] * 39

    async def test_of_a_claim_and_a_resolution_at_once_one_is_made(self, store: Store) -> None:
        await bring_to(store, State.UNKNOWN, lapsed=True)
        answer, outcome = await asyncio.gather(claim(store, B, RETRY), resolve(store, State.SUCCEEDED))
        assert answer.won == (outcome is Resolution.IN_FLIGHT)
        assert answer.won != (outcome is Resolution.RESOLVED)

    @pytest.mark.parametrize("source", OUTCOMES)
    async def test_a_large_resolution_is_kept_whole(self, store: Store, source: State) -> None:
        await bring_to(store, source)
        body = os.urandom(200_000)
        expected = Resolution.RESOLVED if source is State.UNKNOWN else Resolution.SETTLED
        large = StoredResponse(200, (), body, 1)  # over Redis's second connection
        assert await resolve(store, State.SUCCEEDED, response=large) is expected
        held = await held_in(store)
        assert held.record.response is not None
        assert (held.record.response.body == body) == (source is State.UNKNOWN)
