"""What every cache promises to who looks: every look-up key in bounded steps, records without their bodies, and traces."""

import os

import pytest

from oncegate.cache.base import Cache
from oncegate.cache.codec import decode, encode, encode_claim
from oncegate.cache.errors import RecordUnreadable
from oncegate.cache.record import Record, State, StoredResponse, Trace
from tests.cache.stores import Store
from tests.cache.test_behaviours import LEASE, PRINT, RESPONSE, RETENTION, RETRY, TTL, A, B, bring_to, claim

TRACE = Trace("gw-1/42", 1_700_000_000_000)
DONE = Trace("gw-1/42", RESPONSE.completed_at_ms - 250, 250)


def namespace() -> str:
    """One that no other test uses."""
    return f"n{os.urandom(6).hex()}"


async def make(cache: Cache, *keys: str) -> None:
    for key in keys:
        await cache.claim(key, token=os.urandom(16), fingerprint=PRINT, lease_ms=LEASE, retention_ms=RETENTION)


async def all_of(cache: Cache, name: str, digest: str | None = None, limit: int = 10) -> list[str]:
    page = await cache.scan(name, digest, limit=limit)
    found = list(page.keys)
    while page.cursor:
        page = await cache.scan(name, digest, cursor=page.cursor, limit=limit)
        found += page.keys
    return sorted(set(found))


async def test_a_scan_tells_all_of_a_namespace_in_steps(store: Store) -> None:
    name = namespace()
    keys = [f"{name}:k{number}:s" for number in range(50)]
    await make(store.cache, *keys, f"{name}x:k:s", f"x{name}:k:s")
    first = await store.cache.scan(name, limit=10)
    assert len(first.keys) < 50
    assert first.cursor
    assert await all_of(store.cache, name) == sorted(keys)


async def test_a_scan_tells_all_records_of_one_key(store: Store) -> None:
    name = namespace()
    await make(store.cache, f"{name}:one:a", f"{name}:one:b", f"{name}:on:a", f"{name}:onee:a")
    assert await all_of(store.cache, name, "one") == [f"{name}:one:a", f"{name}:one:b"]


async def test_a_scan_takes_no_namespace_for_a_pattern(store: Store) -> None:
    name = namespace()
    await make(store.cache, f"{name}a:k:s", f"{name}*:k:s", f"{name}[a-c]?:k:s", f"{name}bb:k:s", f"{name}\\:k:s")
    for each in (f"{name}*", f"{name}[a-c]?", f"{name}\\"):
        assert await all_of(store.cache, each) == [f"{each}:k:s"]
    assert await all_of(store.cache, f"{name}a", "*") == []


async def test_what_stays_is_told_while_others_come_and_go(store: Store) -> None:
    name = namespace()
    stay, go = [[f"{name}:{kind}{number}:s" for number in range(30)] for kind in ("stay", "go")]
    await make(store.cache, *stay, *go)
    page = await store.cache.scan(name, limit=5)
    found = set(page.keys)
    while page.cursor:
        for key in go[:3]:
            await store.cache.resolve(key, state=None, force=True)
        del go[:3]
        page = await store.cache.scan(name, cursor=page.cursor, limit=5)
        found |= set(page.keys)
    assert found >= set(stay)


async def test_expired_records_are_not_told(store: Store) -> None:
    await claim(store, A)
    name = store.key.partition(":")[0]
    assert store.key in await all_of(store.cache, name)
    store.pass_time(LEASE + RETENTION)
    assert store.key not in await all_of(store.cache, name)


async def test_a_peek_leaves_the_body_where_it_is(store: Store) -> None:
    large = StoredResponse(200, ((b"x", b"y" * 3000),), os.urandom(50_000), 5)
    await claim(store, A)
    await store.cache.complete(
        store.key, token=A, fingerprint=PRINT, attempt=1, state=State.SUCCEEDED, response=large, ttl_ms=TTL
    )
    held = await store.cache.peek(store.key)
    assert held is not None
    assert held.record.response is not None
    assert (held.record.response.headers, held.record.response.completed_at_ms) == (large.headers, 5)
    assert held.record.response.body in (b"", large.body)


@pytest.mark.parametrize("state", [State.ABSENT, State.IN_FLIGHT, State.UNKNOWN])
async def test_a_peek_reads_what_a_get_reads(store: Store, state: State) -> None:
    await bring_to(store, state, lapsed=True)
    peeked, got = await store.cache.peek(store.key), await store.cache.get(store.key)
    assert (peeked and peeked.record) == (got and got.record)


# -- traces: who, when, how long


async def trace_of(store: Store) -> Trace:
    held = await store.cache.get(store.key)
    assert held is not None
    return held.record.trace


async def test_an_attempt_in_flight_tells_who_makes_it_since_when_and_so_it_does_when_it_has_lapsed(
    store: Store,
) -> None:
    await claim(store, A, trace=TRACE)
    assert await trace_of(store) == TRACE
    store.leave(RETENTION - 1)
    assert await trace_of(store) == TRACE
    taken = Trace("gw-2/7", 1_700_000_009_000)
    won = await claim(store, B, RETRY, trace=taken)
    assert (won.record.attempt, await trace_of(store)) == (2, taken)


@pytest.mark.parametrize("response", [RESPONSE, None])
async def test_an_outcome_tells_who_made_it_and_how_long_it_took(store: Store, response: StoredResponse | None) -> None:
    noted = Trace(DONE.gateway, DONE.begun_at_ms, DONE.took_ms, "the connection broke")
    await claim(store, A, trace=TRACE)
    await store.cache.complete(
        store.key,
        token=A,
        fingerprint=PRINT,
        attempt=1,
        state=State.UNKNOWN,
        response=response,
        ttl_ms=TTL,
        trace=noted,
    )
    held = await store.cache.get(store.key)
    assert held is not None
    assert held.record.trace == noted
    assert held.record.response == response


async def test_a_resolution_tells_what_is_known_of_the_attempt(store: Store) -> None:
    noted = Trace("gw-1/42", 1_700_000_000_000, None, "resolved by an operator")
    await bring_to(store, State.UNKNOWN, lapsed=True)
    await store.cache.resolve(store.key, state=State.SUCCEEDED, response=RESPONSE, ttl_ms=TTL, trace=noted)
    assert await trace_of(store) == noted


@pytest.mark.parametrize("junk", [b"{", b"[]", b'{"g":1,"b":"x","d":[],"n":null}', b"\xff\x00"])
def test_a_trace_that_can_not_be_read_costs_no_record(junk: bytes) -> None:
    assert decode(encode_claim(A, PRINT, RETENTION) + junk, RETENTION, traced=True).trace == Trace()


def test_behind_an_outcome_without_a_response_there_is_an_object_or_nothing() -> None:
    """Anything else was a response before it was damaged."""
    before = encode(Record(State.UNKNOWN, A, PRINT, 3))[:42]
    assert decode(before + b'{"g":1,"b":"x","d":[],"n":null}', RETENTION, traced=True).trace == Trace()
    for junk in (b"{", b"[]", b"\xff\x00", b'{"h":[]}', b'{"S":"000000000"}'):
        with pytest.raises(RecordUnreadable):
            decode(before + junk, RETENTION)


def test_a_trace_is_cut_to_what_a_store_can_bear() -> None:
    record = Record(State.UNKNOWN, A, PRINT, 3, trace=Trace("gé" * 500, 1, 2, "n" * 5000))
    data = encode(record)
    assert len(data) < 350
    assert decode(data, 1, traced=True).trace.gateway.startswith("gégé")
