"""Tests of reading: scans of every look-up key in bounded steps, records without their bodies, traces, marks."""

import os

import pytest

from oncegate.cache.record import ClaimRequest, State, StoredResponse, Trace
from oncegate.cache.store import Cache
from oncegate.cache.transitions import ResolveRequest
from oncegate.testing.store import (
    LEASE,
    OUTCOMES,
    PRINT,
    RESPONSE,
    RETENTION,
    RETRY,
    A,
    B,
    Store,
    bring_to,
    claim,
    complete,
    held_in,
    leave,
    resolve,
)

TRACE = Trace("gw-1/42", 1_700_000_000_000)
DONE = Trace("gw-1/42", RESPONSE.completed_at_ms - 250, 250)


def namespace() -> str:
    """One that no other test uses."""
    return f"n{os.urandom(6).hex()}"


async def make(cache: Cache, *keys: str) -> None:
    """A record in flight at each of ``keys``."""
    for key in keys:
        await cache.claim(
            key, ClaimRequest(token=os.urandom(16), fingerprint=PRINT, lease_ms=LEASE, retention_ms=RETENTION)
        )


async def all_of(cache: Cache, name: str, digest: str | None = None, limit: int = 10) -> list[str]:
    """All keys of a complete scan."""
    page = await cache.scan(name, digest, limit=limit)
    found = list(page.keys)
    while page.cursor:
        page = await cache.scan(name, digest, cursor=page.cursor, limit=limit)
        found += page.keys
    return sorted(set(found))


async def trace_of(store: Store) -> Trace:
    """The record's trace."""
    return (await held_in(store)).record.trace


class Looking:
    """Reading records, their traces and their marks."""

    async def test_a_scan_lists_a_whole_namespace_in_steps(self, store: Store) -> None:
        name = namespace()
        keys = [f"{name}:k{number}:s" for number in range(50)]
        await make(store.cache, *keys, f"{name}x:k:s", f"x{name}:k:s")
        first = await store.cache.scan(name, limit=10)
        assert len(first.keys) < 50
        assert first.cursor
        assert await all_of(store.cache, name) == sorted(keys)

    async def test_a_scan_lists_all_records_of_one_key(self, store: Store) -> None:
        name = namespace()
        await make(store.cache, f"{name}:one:a", f"{name}:one:b", f"{name}:on:a", f"{name}:onee:a")
        assert await all_of(store.cache, name, "one") == [f"{name}:one:a", f"{name}:one:b"]

    async def test_a_scan_takes_no_namespace_for_a_pattern(self, store: Store) -> None:
        name = namespace()
        patterns = ("*", "[a-c]?", "\\", "%", "_")
        await make(store.cache, *(f"{name}{each}:k:s" for each in ("a", "bb", *patterns)))
        for each in (f"{name}{pattern}" for pattern in patterns):
            assert await all_of(store.cache, each) == [f"{each}:k:s"]
        assert await all_of(store.cache, f"{name}a", "*") == []

    async def test_what_stays_is_listed_while_others_come_and_go(self, store: Store) -> None:
        name = namespace()
        stay, go = [[f"{name}:{kind}{number}:s" for number in range(30)] for kind in ("stay", "go")]
        await make(store.cache, *stay, *go)
        page = await store.cache.scan(name, limit=5)
        found = set(page.keys)
        while page.cursor:
            for key in go[:3]:
                await store.cache.resolve(key, ResolveRequest(None, force=True))
            del go[:3]
            page = await store.cache.scan(name, cursor=page.cursor, limit=5)
            found |= set(page.keys)
        assert found >= set(stay)

    async def test_expired_records_are_not_listed(self, store: Store) -> None:
        await claim(store, A)
        name = store.key.partition(":")[0]
        assert store.key in await all_of(store.cache, name)
        store.pass_time(LEASE + RETENTION)
        assert store.key not in await all_of(store.cache, name)

    async def test_a_peek_leaves_the_body_where_it_is(self, store: Store) -> None:
        large = StoredResponse(200, ((b"x", b"y" * 3000),), os.urandom(50_000), 5)
        await claim(store, A)
        await complete(store, A, response=large)
        held = await store.cache.peek(store.key)
        assert held is not None
        assert held.record.response is not None
        assert (held.record.response.headers, held.record.response.completed_at_ms) == (large.headers, 5)
        assert held.record.response.body in (b"", large.body)

    @pytest.mark.parametrize("state", [State.ABSENT, State.IN_FLIGHT, State.UNKNOWN])
    async def test_a_peek_reads_what_a_get_reads(self, store: Store, state: State) -> None:
        await bring_to(store, state, lapsed=True)
        peeked, got = await store.cache.peek(store.key), await store.cache.get(store.key)
        assert (peeked and peeked.record) == (got and got.record)

    # -- traces: who, when, how long

    async def test_the_trace_of_an_attempt_stays_when_its_lease_has_lapsed(self, store: Store) -> None:
        await claim(store, A, trace=TRACE)
        assert await trace_of(store) == TRACE
        await leave(store, RETENTION - 1)
        assert await trace_of(store) == TRACE
        taken = Trace("gw-2/7", 1_700_000_009_000)
        won = await claim(store, B, RETRY, trace=taken)
        assert (won.record.attempt, await trace_of(store)) == (2, taken)

    @pytest.mark.parametrize("response", [RESPONSE, None])
    async def test_an_outcome_has_the_trace_of_its_attempt(self, store: Store, response: StoredResponse | None) -> None:
        noted = Trace(DONE.gateway, DONE.begun_at_ms, DONE.took_ms, "the connection broke")
        await claim(store, A, trace=TRACE)
        await complete(store, A, State.UNKNOWN, response=response, trace=noted)
        held = await held_in(store)
        assert (held.record.trace, held.record.response) == (noted, response)

    @pytest.mark.parametrize("state", [State.IN_FLIGHT, State.SUCCEEDED])
    async def test_a_claim_that_has_a_span_finds_that_of_the_record(self, store: Store, state: State) -> None:
        first, second = (Trace(begun_at_ms=1, span=f"{number:032x}-{number:016x}") for number in (1, 2))
        await claim(store, A, trace=first)
        if state is State.SUCCEEDED:
            await complete(store, A, state, response=RESPONSE, trace=first)
        found = await claim(store, B, trace=second)
        assert (found.won, found.record.state, found.record.trace.span) == (False, state, first.span)

    async def test_a_resolution_has_the_trace_that_it_is_given(self, store: Store) -> None:
        noted = Trace("gw-1/42", 1_700_000_000_000, None, "resolved by an operator")
        await bring_to(store, State.UNKNOWN, lapsed=True)
        await resolve(store, State.SUCCEEDED, trace=noted)
        assert await trace_of(store) == noted

    # -- submissions

    @pytest.mark.parametrize("marked", [True, False])
    async def test_a_submission_is_marked_for_as_long_as_it_is_in_flight(self, store: Store, marked: bool) -> None:
        assert (await claim(store, A, submission=marked)).record.submission is marked
        found = await claim(store, B)
        assert (found.record.state, found.record.submission) == (State.IN_FLIGHT, marked)
        await leave(store, RETENTION - 1)
        lapsed = await held_in(store)
        assert (lapsed.record.state, lapsed.record.submission) == (State.UNKNOWN, marked)

    @pytest.mark.parametrize("marked", [True, False])
    @pytest.mark.parametrize("response", [RESPONSE, None])
    @pytest.mark.parametrize("state", OUTCOMES)
    async def test_the_outcome_of_a_submission_is_marked(
        self, store: Store, state: State, response: StoredResponse | None, marked: bool
    ) -> None:
        await claim(store, A, submission=marked)
        assert await complete(store, A, state, response=response, submission=marked)
        for held in (await claim(store, B), await store.cache.get(store.key), await store.cache.peek(store.key)):
            assert held is not None
            assert (held.record.state, held.record.submission) == (state, marked)

    @pytest.mark.parametrize("marked", [True, False])
    async def test_a_released_takeover_of_a_submission_leaves_it_marked(self, store: Store, marked: bool) -> None:
        await claim(store, A, submission=marked)
        await leave(store, RETENTION - 1)
        taken = await claim(store, B, RETRY, submission=marked)
        assert taken.won
        assert taken.record.submission is marked
        assert await store.cache.release(store.key, token=B)
        held = await held_in(store)
        assert (held.record.state, held.record.submission) == (State.UNKNOWN, marked)

    @pytest.mark.parametrize("marked", [True, False])
    async def test_what_an_operator_resolves_keeps_the_mark_that_he_gives(self, store: Store, marked: bool) -> None:
        await claim(store, A, submission=marked)
        await leave(store, RETENTION - 1)
        await resolve(store, State.SUCCEEDED, submission=marked)
        held = await held_in(store)
        assert (held.record.state, held.record.submission) == (State.SUCCEEDED, marked)

    async def test_nothing_in_a_trace_is_taken_for_the_mark(self, store: Store) -> None:
        await claim(store, A, trace=Trace('{"a":1', 1))
        await leave(store, RETENTION - 1)
        assert (await claim(store, B, RETRY, trace=Trace('{"a":1', 1))).won
        assert await store.cache.release(store.key, token=B)
        held = await held_in(store)
        assert not held.record.submission
