"""The newest records of a choice, from each cache: bounded, honest about what was not looked at, and no hold-up of others.

Rules of docs/contract.md: R11.38.
"""

import asyncio
import gc
import os
from time import monotonic, thread_time
from typing import Any

import pytest

from oncegate.app.operators.records.newest import Chosen, newest
from oncegate.app.operators.records.records import NotARecord, Records
from oncegate.cache.memory.store import MemoryCache
from oncegate.cache.record import Claim, ClaimRequest, Record, State, StoredResponse, Trace
from oncegate.cache.store import Cache
from oncegate.middleware.rules.keys.key import caller_of_id, record_id, record_key, scope_parts
from oncegate.middleware.rules.policies import Policies
from oncegate.middleware.rules.settings import IdempotencySettings
from testing.inside import entries_of
from testing.served import served
from testing.upstreams import OK, Upstream, answering
from tests.app.described import as_described

NOW_MS = 1_790_000_000_000
TOKEN = "the-operators-token"
MOST_HELD = 0.02
"""Seconds of processor time between two turns of the event loop: some 2 ms are meant, and all at once would be half a second."""


def records_in(cache: Cache) -> Records:
    return Records(cache, f"newest-{os.urandom(4).hex()}", Policies(IdempotencySettings(), ()).all())


def scope_of(name: str) -> Any:
    return scope_parts({b"authorization": [name.encode()]}, (b"authorization",))


async def fill(records: Records, count: int, body: bytes = b"") -> list[str]:
    """Records of which the first is the newest, a second between two; their ids. Each third is Bob's, each fifth unknown."""
    ids = []
    for number in range(count):
        key = record_key(records.namespace, f"k-{number}", scope_of("bob" if number % 3 == 0 else "alice"))
        route = "/payments/*" if number % 2 else "/refunds"
        trace = Trace(gateway="here/1", begun_at_ms=NOW_MS - number * 1000, took_ms=1, method="POST", route=route)
        state = State.SUCCEEDED if number % 5 else State.UNKNOWN
        response = StoredResponse(200, ((b"a", b"b"),), body, NOW_MS - number * 1000 + 1) if number % 5 else None
        await records.cache.complete(
            key, Record(state, os.urandom(16), b"f" * 16, 1, response, trace=trace), ttl_ms=600_000
        )
        ids.append(record_id(key))
    return ids


async def test_what_is_chosen_is_found_in_each_cache_the_newest_first(cache: Cache) -> None:
    records = records_in(cache)
    ids = await fill(records, 60, body=b"x" * 20_000)
    flight = record_key(records.namespace, "in flight", None)
    trace = Trace(begun_at_ms=NOW_MS + 1, method="POST", route="/refunds")
    await cache.claim(
        flight, ClaimRequest(token=b"t" * 16, fingerprint=b"f" * 16, lease_ms=60_000, retention_ms=9_000, trace=trace)
    )

    async def found(limit: int = 100, **choice: Any) -> tuple[list[int], dict[str, int]]:
        answer = await newest(records, Chosen(**choice), limit=limit)
        assert (answer["scanned"], answer["complete"], answer["cursor"]) == (61, True, "")
        return [ids.index(row["id"]) if row["id"] in ids else -1 for row in answer["records"]], answer["counts"]

    everything = {"succeeded": 48, "unknown": 12, "in-flight": 1}
    assert await found() == ([-1, *range(60)], everything)
    assert await found(limit=3) == ([-1, 0, 1], everything)
    assert await found(state="unknown") == ([*range(0, 60, 5)], everything)
    assert await found(state="in-flight") == ([-1], everything)
    assert (await found(route="/payments/*"))[0] == [*range(1, 60, 2)]
    assert (await found(since_ms=NOW_MS - 9_000))[0] == [-1, *range(10)]
    bob = frozenset([caller_of_id(ids[0])])
    assert await found(callers=bob) == ([*range(0, 60, 3)], {"succeeded": 16, "unknown": 4})
    both = await found(callers=bob, route="/refunds", since_ms=NOW_MS - 20_000, state="unknown")
    assert both == ([0], {"succeeded": 3, "unknown": 1})


async def test_a_scan_ends_where_it_is_to_and_says_so(cache: Cache) -> None:
    records = records_in(cache)
    ids = await fill(records, 1300)
    first = await newest(records, Chosen(), limit=5, most=400)
    assert len(first["records"]) == 5
    assert 400 <= first["scanned"] < 1300
    assert (first["complete"], bool(first["cursor"])) == (False, True)
    seen, scanned, cursor = {row["id"] for row in first["records"]}, first["scanned"], first["cursor"]
    while cursor:
        more = await newest(records, Chosen(), cursor=cursor, limit=5, most=400)
        assert not more["complete"]  # what came before the cursor is not in it
        seen |= {row["id"] for row in more["records"]}
        scanned, cursor = scanned + more["scanned"], more["cursor"]
    assert scanned >= 1300
    assert set(ids[:5]) <= seen


async def test_what_can_not_be_read_is_counted_and_comes_last(cache: Cache) -> None:
    records = records_in(cache)
    ids = await fill(records, 3)
    if isinstance(cache, MemoryCache):
        key = records.key_of(ids[0])
        entries_of(cache).put(key, b"\x01Xdamaged", int(monotonic() * 1000) + 60_000)
        answer = await newest(records, Chosen())
        assert [row["id"] for row in answer["records"]] == [ids[1], ids[2], ids[0]]
        assert answer["records"][2] == {"id": ids[0], "state": "unreadable"}
        assert answer["counts"] == {"succeeded": 2, "unreadable": 1}
        assert len((await newest(records, Chosen(route="/refunds")))["records"]) == 1
    with pytest.raises(NotARecord):
        await newest(records, Chosen(), cursor="absurd \x00")


class Counting(MemoryCache):
    """Counts what is read of it."""

    __slots__ = ("peeks",)

    def __init__(self) -> None:
        super().__init__()
        self.peeks = 0

    async def peek(self, key: str) -> Claim | None:
        self.peeks += 1
        return await super().peek(key)


async def test_no_scan_holds_the_event_loop_up() -> None:
    """(In memory, whose pages and records are there at once: each other cache waits for its own.)"""
    cache = Counting()
    records = records_in(cache)
    await fill(records, 20_000)
    seconds, peeks = 0.0, 0

    async def others() -> None:
        nonlocal seconds, peeks
        while True:
            before = thread_time(), cache.peeks
            await asyncio.sleep(0)
            seconds, peeks = max(seconds, thread_time() - before[0]), max(peeks, cache.peeks - before[1])

    gc.disable()
    beside = asyncio.create_task(others())
    try:
        answer = await newest(records, Chosen(), most=100_000)
        assert (answer["scanned"], answer["complete"]) == (20_000, True)
        listed = await records.listing(limit=1000)
        assert len(listed["records"]) == 1000
        assert cache.peeks == 21_000
    finally:
        beside.cancel()
        gc.enable()
    assert peeks <= 50
    assert seconds < MOST_HELD


async def test_the_page_says_what_was_looked_at() -> None:
    async with Upstream(answering(OK)) as upstream, served(upstream.url, admin_token=TOKEN) as (client, _):
        client.headers["authorization"] = f"Bearer {TOKEN}"
        ids = []
        for number in range(4):
            answer = await client.post("/payments", content=b"{}", headers={"idempotency-key": f"k-{number}"})
            assert answer.status_code == 200
            newer = as_described(await client.get("/_oncegate/records/", params={"order": "newest"})).json()
            ids += [row["id"] for row in newer["records"] if row["id"] not in ids]

        async def get(status: int = 200, **query: Any) -> Any:
            found = as_described(await client.get("/_oncegate/records/", params=query))
            assert found.status_code == status
            return found.json()

        newer = await get(order="newest", limit=2)
        assert len(newer["records"]) == 2
        assert (newer["scanned"], newer["complete"], newer["counts"]) == (4, True, {"succeeded": 4})
        assert len((await get(caller=[caller_of_id(ids[0])]))["records"]) == 4
        assert (await get(caller=["x" * 20]))["records"] == []
        assert (await get(route="/nowhere"))["records"] == []
        assert len((await get(route="*", since=3600, state="succeeded"))["records"]) == 4
        assert (await get(route="*", state="unknown"))["counts"] == {"succeeded": 4}
        assert "scanned" not in await get()
        for wrong in (
            {"order": "oldest"},
            {"since": 0},
            {"since": "nan"},
            {"caller": "alice"},
            {"scan": 0},
            {"scan": 10**9},
        ):
            assert (await get(400, **wrong))["status"] == 400
