"""Unknown outcomes resolved by their choice: those that were seen, the attempt that was read, in bounded steps, with a reason.

Rules of docs/contract.md: R11.22, R11.55.
"""

import asyncio
import gc
import os
from collections.abc import Callable, Sequence
from time import thread_time
from typing import Any

import pytest

from oncegate.app.operators.audit import Author
from oncegate.app.operators.audit_lines import AuditLines
from oncegate.app.operators.records import unknown_changes
from oncegate.app.operators.records.records import NotARecord, Records
from oncegate.app.operators.records.unknown_changes import UnknownAt, change_unknown
from oncegate.app.settings.admin_tokens import AdminToken
from oncegate.cache.errors import CacheUnavailable, RecordUnreadable
from oncegate.cache.memory.store import MemoryCache
from oncegate.cache.record import Claim, ClaimRequest, Record, State, StoredResponse, Trace
from oncegate.cache.store import Cache, KeepsAudit
from oncegate.cache.transitions import Resolution, ResolveRequest
from oncegate.middleware.outcome.responses import now_ms
from oncegate.middleware.rules.keys.key import caller_of_id, record_id, record_key, scope_parts
from oncegate.middleware.rules.policies import Policies
from oncegate.middleware.rules.settings import IdempotencySettings
from testing.served import served
from testing.upstreams import Upstream, resetting_after
from testing.waiting import PATIENCE, until
from tests.app.described import as_described

READER, WRITER = "oncegate-a-token-that-reads", "oncegate-a-token-that-changes"
TOKENS = [AdminToken.of("rita", READER, writes=False).setting(), AdminToken.of("will", WRITER).setting()]
WHO = Author("will", "not in the books")
RELEASE = ResolveRequest(None)
MOST_HELD = 0.02
"""Seconds of processor time between two turns of the event loop: some 5 ms are the bound, and all at once would be a second."""


def records_in(cache: Cache) -> Records:
    return Records(cache, f"unknown-{os.urandom(4).hex()}", Policies(IdempotencySettings(), ()).all())


def scope_of(name: str) -> Any:
    return scope_parts({b"authorization": [name.encode()]}, (b"authorization",))


async def keep(
    records: Records,
    key: str,
    *,
    state: State = State.UNKNOWN,
    ended_ago: float = 60.0,
    took: float | None = 1.0,
    caller: str = "alice",
    route: str = "/payments",
    response: StoredResponse | None = None,
) -> str:
    """A record that was written so many seconds ago, of an attempt that took so many; its id."""
    address = record_key(records.namespace, key, scope_of(caller))
    begun = now_ms() - round((ended_ago + (took or 0.0)) * 1000)
    trace = Trace("vm/1", begun, None if took is None else round(took * 1000), "", "POST", route)
    record = Record(state, os.urandom(16), b"f" * 16, 1, response, trace=trace)
    await records.cache.complete(address, record, ttl_ms=600_000)
    return record_id(address)


async def lapse(records: Records, key: str, route: str = "/payments") -> str:
    """A record whose owner was lost: it reads unknown by itself; its id."""
    address = record_key(records.namespace, key, scope_of("alice"))
    trace = Trace("vm/1", now_ms() - 60_000, None, "", "POST", route)
    await records.cache.claim(address, ClaimRequest(os.urandom(16), b"f" * 16, 1, 600_000, trace=trace))

    async def reads_unknown() -> bool:
        held = await records.cache.peek(address)
        return held is not None and held.record.lapsed

    await until(reads_unknown, "its lease is over")
    return record_id(address)


async def state_of(records: Records, identifier: str) -> str:
    shown = await records.show(identifier)
    return "absent" if shown is None else shown["state"]


async def whole(
    records: Records, which: UnknownAt, request: ResolveRequest = RELEASE, **options: Any
) -> dict[str, int]:
    """What came of all steps, until the last one."""
    total = dict.fromkeys(("found", "resolved", "refused", "left", "steps"), 0)
    cursor = ""
    while True:
        done = await change_unknown(records, None, which, request, WHO, cursor=cursor, seconds=PATIENCE, **options)
        for name in total:
            total[name] += 1 if name == "steps" else done[name]
        if done["complete"]:
            return total
        cursor = done["cursor"]


async def test_what_is_chosen_is_resolved_and_nothing_else(cache: Cache) -> None:
    records = records_in(cache)
    ids = [await keep(records, f"k-{number}", ended_ago=60 * number + 1) for number in range(4)]
    lapsed = await lapse(records, "lapsed")
    others = {
        "route": await keep(records, "route", route="/refunds"),
        "caller": await keep(records, "caller", caller="bob"),
        "older": await keep(records, "older", ended_ago=3600),
        "succeeded": await keep(
            records, "succeeded", state=State.SUCCEEDED, response=StoredResponse(201, (), b"", now_ms() - 60_000)
        ),
        "failed": await keep(records, "failed", state=State.FAILED),
    }
    before = {name: await state_of(records, each) for name, each in others.items()}
    callers = frozenset([caller_of_id(ids[0])])
    # A second more: when a lease was over is known in whole milliseconds, by the cache's own clock.
    which = UnknownAt(now_ms() + 1000, "/payments", callers, since=1800.0)
    counted = await whole(records, which, dry_run=True)
    assert (counted["found"], counted["resolved"]) == (5, 0)
    assert {await state_of(records, each) for each in (*ids, lapsed)} == {"unknown"}, "a count changes nothing"
    answer = StoredResponse(201, ((b"content-type", b"text/plain"),), b"paid", now_ms())
    total = await whole(records, which, ResolveRequest(State.SUCCEEDED, answer))
    assert (total["found"], total["resolved"], total["refused"], total["left"]) == (5, 5, 0, 0)
    for each in (*ids, lapsed):
        shown = await records.show(each, response=True)
        assert shown is not None
        assert (shown["state"], shown["response"]["body"]) == ("succeeded", "paid")
        assert shown["note"] == "resolved by will: not in the books"
    assert {name: await state_of(records, each) for name, each in others.items()} == before
    assert (await whole(records, UnknownAt(now_ms(), older=1800.0)))["resolved"] == 1
    assert await state_of(records, others["older"]) == "absent"
    assert await state_of(records, others["route"]) == "unknown"


async def test_what_has_become_unknown_since_stays(cache: Cache) -> None:
    records = records_in(cache)
    seen = [await keep(records, "k-1"), await lapse(records, "k-2")]
    await asyncio.sleep(0.005)  # instants are in whole milliseconds, a lapse by the cache's own clock
    which = UnknownAt(now_ms())
    await asyncio.sleep(0.005)
    later = [
        await lapse(records, "k-3"),
        await keep(records, "k-4", ended_ago=-1.0, took=90.0),
        await keep(records, "k-5", response=StoredResponse(504, (), b"", now_ms() + 1)),
        await keep(records, "k-6", took=None),  # nothing says since when
    ]
    total = await whole(records, which)
    assert (total["found"], total["resolved"], total["left"]) == (2, 2, 4)
    assert {await state_of(records, each) for each in seen} == {"absent"}
    assert {await state_of(records, each) for each in later} == {"unknown"}


class Meanwhile(MemoryCache):
    """A cache in which something happens to a record between the look at it and what is done then."""

    __slots__ = ("happens",)

    def __init__(self) -> None:
        super().__init__()
        self.happens: Callable[[str], Any] | None = None

    async def peek_all(self, keys: Sequence[str]) -> list[Claim | RecordUnreadable | None]:
        """The records; then it happens to each."""
        held: list[Claim | RecordUnreadable | None] = [await self.peek(key) for key in keys]
        if self.happens is not None:
            for key in keys:
                await self.happens(key)
        return held


async def test_what_others_have_changed_between_the_look_and_the_change_is_refused() -> None:
    cache = Meanwhile()
    records = records_in(cache)
    taken, ended, gone = [await keep(records, key) for key in ("taken", "ended", "gone")]

    async def happens(key: str) -> None:
        identifier = record_id(key)
        if identifier == taken:  # a retry takes over, is lost in its turn, and reads unknown again: as another attempt
            claim = ClaimRequest(os.urandom(16), b"f" * 16, 1, 600_000, frozenset({State.UNKNOWN}))
            assert (await cache.claim(key, claim)).won
            await asyncio.sleep(0.01)
        else:
            state = State.FAILED if identifier == ended else None
            done = await records.resolve(identifier, ResolveRequest(state), Author("rita", "was quicker"))
            assert done is Resolution.RESOLVED

    cache.happens = happens
    done = await change_unknown(records, None, UnknownAt(now_ms()), RELEASE, WHO)
    cache.happens = None
    assert (done["found"], done["resolved"], done["refused"]) == (3, 0, 3)
    shown = await records.show(taken)
    assert shown is not None
    assert (shown["state"], shown["attempt"]) == ("unknown", 2)
    assert await state_of(records, ended) == "failed"
    assert await state_of(records, gone) == "absent"


async def test_two_operators_at_once_resolve_each_record_once(cache: Cache) -> None:
    records, which = records_in(cache), UnknownAt(now_ms())
    ids = [await keep(records, f"k-{number}") for number in range(120)]
    one, other = await asyncio.gather(
        whole(records, which, ResolveRequest(State.FAILED)), whole(records, which, RELEASE)
    )
    assert one["resolved"] + other["resolved"] == 120
    assert one["refused"] + other["refused"] <= 120
    states = [await state_of(records, each) for each in ids]
    assert (states.count("failed"), states.count("absent")) == (one["resolved"], other["resolved"])


async def test_a_step_is_bounded_and_the_next_one_goes_on(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    records, which = records_in(cache), UnknownAt(now_ms())
    ids = [await keep(records, f"k-{number}") for number in range(300)]
    monkeypatch.setattr(unknown_changes, "MOST_CHANGED", 60)
    first = await change_unknown(records, None, which, RELEASE, WHO, seconds=PATIENCE)
    assert 60 <= first["resolved"] <= 110
    assert not first["complete"]
    hurried = await change_unknown(records, None, which, RELEASE, WHO, cursor=first["cursor"], seconds=0.0)
    assert hurried["resolved"] <= 50
    total = await whole(records, which)
    assert first["resolved"] + hurried["resolved"] + total["resolved"] == 300
    assert {await state_of(records, each) for each in ids} == {"absent"}
    with pytest.raises(NotARecord):
        await change_unknown(records, None, which, RELEASE, WHO, cursor="absurd \x00")


async def test_each_record_has_a_line_of_the_log_and_all_have_one_of_the_audit(
    cache: Cache, caplog: pytest.LogCaptureFixture
) -> None:
    records, which = records_in(cache), UnknownAt(now_ms(), "/payments")
    ids = [await keep(records, f"k-{number}") for number in range(3)]
    assert isinstance(cache, KeepsAudit)
    audit = AuditLines(cache, records.namespace)
    await change_unknown(records, audit, which, RELEASE, WHO, seconds=PATIENCE)
    (line,) = (await audit.listing())["lines"]
    assert (line["operator"], line["done"], line["reason"]) == ("will", "resolved to absent", WHO.reason)
    assert line["what"].startswith("3 records of unknown outcome (until 2")
    assert line["what"].endswith(", route /payments)")
    logged = [each.getMessage() for each in caplog.records if each.name == "oncegate.audit"]
    assert {f"record {each}: resolved to absent by will: not in the books" for each in ids} < set(logged)
    assert len(logged) == 4
    await change_unknown(records, audit, which, RELEASE, WHO, seconds=PATIENCE)
    assert len((await audit.listing())["lines"]) == 1, "nothing was changed"


class Failing(MemoryCache):
    """Is away after some resolutions."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left

    async def resolve(self, key: str, request: ResolveRequest) -> Resolution:
        """As long as it is there."""
        self.left -= 1
        if self.left < 0:
            raise CacheUnavailable("it is away")
        return await super().resolve(key, request)


async def test_what_was_resolved_before_the_cache_went_away_is_reported() -> None:
    cache = Failing(2)
    records, which = records_in(cache), UnknownAt(now_ms())
    for number in range(4):
        await keep(records, f"k-{number}")
    audit = AuditLines(cache, records.namespace)
    with pytest.raises(CacheUnavailable):
        await change_unknown(records, audit, which, RELEASE, WHO)
    assert (await audit.listing())["lines"][0]["what"].startswith("2 records of unknown outcome")
    cache.left = 10
    assert (await whole(records, which))["resolved"] == 2


class Counting(MemoryCache):
    """Counts what is resolved in it."""

    __slots__ = ("resolutions",)

    def __init__(self) -> None:
        super().__init__()
        self.resolutions = 0

    async def resolve(self, key: str, request: ResolveRequest) -> Resolution:
        """As ever."""
        self.resolutions += 1
        return await super().resolve(key, request)


async def test_no_step_holds_the_event_loop_up() -> None:
    """(In memory, whose records are there at once, and are resolved at once.)"""
    cache = Counting()
    records, which = records_in(cache), UnknownAt(now_ms())
    for number in range(3000):
        await keep(records, f"k-{number}")
    seconds, most = 0.0, 0

    async def others() -> None:
        nonlocal seconds, most
        while True:
            before = thread_time(), cache.resolutions
            await asyncio.sleep(0)
            seconds, most = max(seconds, thread_time() - before[0]), max(most, cache.resolutions - before[1])

    gc.disable()
    beside = asyncio.create_task(others())
    try:
        assert (await whole(records, which))["resolved"] == 3000
    finally:
        beside.cancel()
        gc.enable()
    assert most == 1
    assert seconds < MOST_HELD


# -- over HTTP ----------------------------------------------------------------------------------------------------------


async def test_an_operator_s_program_counts_and_changes_by_a_choice() -> None:
    async with (
        Upstream(resetting_after()) as upstream,
        served(upstream.url, admin_tokens=TOKENS, routes=[{"path": "/payments"}]) as (client, _),
    ):
        client.headers["authorization"] = f"Bearer {WRITER}"

        async def pay(key: str, path: str = "/payments") -> str:
            answer = await client.post(path, content=b"{}", headers={"idempotency-key": key})
            return str(answer.json()["record"])

        async def post(action: str, expected: int = 200, token: str = WRITER, **document: Any) -> Any:
            where = f"/_oncegate/records/unknown/{action}"
            answer = await client.post(where, json=document, headers={"authorization": f"Bearer {token}"})
            assert as_described(answer).status_code == expected, answer.text
            return answer.json()

        ids = [await pay(f"k-{number}") for number in range(3)]
        other = await pay("other", "/refunds")
        counted = await post("release", reason="x", route="/payments", dry_run=True)
        assert (counted["found"], counted["resolved"], counted["complete"]) == (3, 0, True)
        late = await pay("late")
        found = {"reason": "in the books", "route": "/payments", "until": counted["until"]}
        found |= {"as": "succeeded", "status": 201, "body": "{}"}
        done = await post("resolve", **found)
        assert (done["resolved"], done["left"], done["until"]) == (3, 1, counted["until"])
        for each, state in [*[(each, "succeeded") for each in ids], (other, "unknown"), (late, "unknown")]:
            shown = await client.get(f"/_oncegate/records/{each}")
            assert shown.json()["state"] == state
        for wrong in ({}, {"reason": ""}, {"reason": "  "}, {"reason": "a\nb"}, {"reason": "x" * 121}):
            await post("release", 400, **wrong)
            await post("resolve", 400, **wrong, **{"as": "failed"})
        others: tuple[dict[str, Any], ...] = (
            {"since": 0},
            {"older": -1},
            {"caller": ["alice"]},
            {"until": "noon"},
            {"cursor": "\x00"},
        )
        for given in others:
            await post("release", 400, reason="x", **given)
        await post("resolve", 400, reason="x", **{"as": "succeeded"})
        await post("release", 403, token=READER, reason="x")
        await post("resolve", 403, token=READER, reason="x", **{"as": "failed"})
        shown = await client.get(f"/_oncegate/records/{late}")
        assert shown.json()["state"] == "unknown", "none of these has changed anything"
        ahead = await post("release", reason="x", until="2999-01-01T00:00:00Z", dry_run=True)
        assert ahead["until"] < "2999", "nobody has seen what comes"
        assert (await post("release", reason="x", until="0001-01-01T00:00:00Z"))["found"] == 0
        assert (await post("release", reason="not booked"))["resolved"] == 2
