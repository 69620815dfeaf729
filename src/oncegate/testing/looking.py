"""Tests of reading: scans of every look-up key in bounded steps, records without their bodies, traces, marks."""

import os

import pytest

from oncegate.cache.record import ClaimRequest, Record, State, StoredResponse, Trace
from oncegate.cache.store import Cache
from oncegate.cache.transitions import ResolveRequest
from oncegate.testing.store import (
    LEASE,
    OUTCOMES,
    PRINT,
    RESPONSE,
    RETENTION,
    RETRY,
    TTL,
    A,
    B,
    Store,
    bring_to,
    claim,
    leave,
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
    held = await store.cache.get(store.key)
    assert held is not None
    return held.record.trace


class Looking:
    """Reading records, their traces and their marks."""

    async def test_a_scan_tells_all_of_a_namespace_in_steps(self, store: Store) -> None:
        name = namespace()
        keys = [f"{name}:k{number}:s" for number in range(50)]
        await make(store.cache, *keys, f"{name}x:k:s", f"x{name}:k:s")
        first = await store.cache.scan(name, limit=10)
        assert len(first.keys) < 50
        assert first.cursor
        assert await all_of(store.cache, name) == sorted(keys)

    async def test_a_scan_tells_all_records_of_one_key(self, store: Store) -> None:
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

    async def test_what_stays_is_told_while_others_come_and_go(self, store: Store) -> None:
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

    async def test_expired_records_are_not_told(self, store: Store) -> None:
        await claim(store, A)
        name = store.key.partition(":")[0]
        assert store.key in await all_of(store.cache, name)
        store.pass_time(LEASE + RETENTION)
        assert store.key not in await all_of(store.cache, name)

    async def test_a_peek_leaves_the_body_where_it_is(self, store: Store) -> None:
        large = StoredResponse(200, ((b"x", b"y" * 3000),), os.urandom(50_000), 5)
        await claim(store, A)
        await store.cache.complete(
            store.key, Record(token=A, fingerprint=PRINT, attempt=1, state=State.SUCCEEDED, response=large), ttl_ms=TTL
        )
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

    async def test_an_attempt_in_flight_tells_who_makes_it_since_when_and_so_it_does_when_it_has_lapsed(
        self,
        store: Store,
    ) -> None:
        await claim(store, A, trace=TRACE)
        assert await trace_of(store) == TRACE
        await leave(store, RETENTION - 1)
        assert await trace_of(store) == TRACE
        taken = Trace("gw-2/7", 1_700_000_009_000)
        won = await claim(store, B, RETRY, trace=taken)
        assert (won.record.attempt, await trace_of(store)) == (2, taken)

    @pytest.mark.parametrize("response", [RESPONSE, None])
    async def test_an_outcome_tells_who_made_it_and_how_long_it_took(
        self, store: Store, response: StoredResponse | None
    ) -> None:
        noted = Trace(DONE.gateway, DONE.begun_at_ms, DONE.took_ms, "the connection broke")
        await claim(store, A, trace=TRACE)
        await store.cache.complete(
            store.key,
            Record(token=A, fingerprint=PRINT, attempt=1, state=State.UNKNOWN, response=response, trace=noted),
            ttl_ms=TTL,
        )
        held = await store.cache.get(store.key)
        assert held is not None
        assert held.record.trace == noted
        assert held.record.response == response

    async def test_a_resolution_tells_what_is_known_of_the_attempt(self, store: Store) -> None:
        noted = Trace("gw-1/42", 1_700_000_000_000, None, "resolved by an operator")
        await bring_to(store, State.UNKNOWN, lapsed=True)
        await store.cache.resolve(store.key, ResolveRequest(State.SUCCEEDED, RESPONSE, TTL, trace=noted))
        assert await trace_of(store) == noted

    # -- submissions

    @pytest.mark.parametrize("marked", [True, False])
    async def test_a_submission_is_marked_for_as_long_as_it_is_in_flight(self, store: Store, marked: bool) -> None:
        assert (await claim(store, A, submission=marked)).record.submission is marked
        found = await claim(store, B)
        assert found.record.state is State.IN_FLIGHT
        assert found.record.submission is marked
        await leave(store, RETENTION - 1)
        lapsed = await store.cache.get(store.key)
        assert lapsed is not None
        assert lapsed.record.state is State.UNKNOWN
        assert lapsed.record.submission is marked

    @pytest.mark.parametrize("marked", [True, False])
    @pytest.mark.parametrize("response", [RESPONSE, None])
    @pytest.mark.parametrize("state", OUTCOMES)
    async def test_the_outcome_of_a_submission_is_marked(
        self, store: Store, state: State, response: StoredResponse | None, marked: bool
    ) -> None:
        await claim(store, A, submission=marked)
        assert await store.cache.complete(
            store.key,
            Record(token=A, fingerprint=PRINT, attempt=1, state=state, response=response, submission=marked),
            ttl_ms=TTL,
        )
        for held in (await claim(store, B), await store.cache.get(store.key), await store.cache.peek(store.key)):
            assert held is not None
            assert held.record.state is state
            assert held.record.submission is marked

    @pytest.mark.parametrize("marked", [True, False])
    async def test_a_released_takeover_of_a_submission_leaves_it_marked(self, store: Store, marked: bool) -> None:
        await claim(store, A, submission=marked)
        await leave(store, RETENTION - 1)
        taken = await claim(store, B, RETRY, submission=marked)
        assert taken.won
        assert taken.record.submission is marked
        assert await store.cache.release(store.key, token=B)
        held = await store.cache.get(store.key)
        assert held is not None
        assert held.record.state is State.UNKNOWN
        assert held.record.submission is marked

    @pytest.mark.parametrize("marked", [True, False])
    async def test_what_an_operator_resolves_keeps_the_mark_that_he_gives(self, store: Store, marked: bool) -> None:
        await claim(store, A, submission=marked)
        await leave(store, RETENTION - 1)
        await store.cache.resolve(store.key, ResolveRequest(State.SUCCEEDED, RESPONSE, TTL, submission=marked))
        held = await store.cache.get(store.key)
        assert held is not None
        assert held.record.state is State.SUCCEEDED
        assert held.record.submission is marked

    async def test_nothing_in_a_trace_is_taken_for_the_mark(self, store: Store) -> None:
        await claim(store, A, trace=Trace('{"a":1', 1))
        await leave(store, RETENTION - 1)
        assert (await claim(store, B, RETRY, trace=Trace('{"a":1', 1))).won
        assert await store.cache.release(store.key, token=B)
        held = await store.cache.get(store.key)
        assert held is not None
        assert not held.record.submission
