"""What is not under enforcement is observed: its client meets nothing of us, and what would have been done is known.

Rules of docs/contract.md: R7.20, R7.21, R7.22, R7.23.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI

from oncegate.cache.memory.store import MemoryCache
from oncegate.cache.record import State
from oncegate.cache.redis.store import RedisCache
from oncegate.middleware.admission.observe import Observation
from oncegate.middleware.outcome.errors import NotProcessed, OutcomeUnknown
from oncegate.middleware.rules.settings import Route
from testing.servers import RedisServer
from testing.waiting import until
from tests.middleware.conftest import MakeDoor
from tests.middleware.door import PATIENCE, Answering, Call, Door, Lines

SHADOW: dict[str, Any] = {"enforce": 0, "shadow": True}
BASIC: Lines = [("authorization", "Basic alice")]
Decided = tuple[str, int, int, str]


class Seen:
    """What was observed, or answered, in this order: the decision, the status, the attempt's number, the method."""

    def __init__(self) -> None:
        self.all: list[Observation] = []

    def __call__(self, observation: Observation) -> None:
        self.all.append(observation)

    @property
    def decided(self) -> list[Decided]:
        return [(each.decision, each.status, each.attempt, each.method) for each in self.all]

    async def have(self, number: int) -> None:
        await until(lambda: len(self.all) >= number, f"{number} are observed")


def lines_of(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """The lines of the log of what was observed."""
    return [
        vars(record) for record in caplog.records if record.name == "oncegate.shadow" and "decision" in vars(record)
    ]


# -- what would have been done is what enforcement does ---------------------------------------------------------------

Population = Callable[[Door, Answering], Awaitable[None]]


async def _retries(there: Door, app: Answering) -> None:
    for _ in range(3):
        await there.send()


async def _callers(there: Door, app: Answering) -> None:
    for caller in ("Basic alice", "Basic bob"):
        for _ in range(2):
            await there.send(headers=[("authorization", caller)])
    await there.send()


async def _wrong_requests(there: Door, app: Answering) -> None:
    await there.send()
    await there.send(b"another payload")
    await there.send(path="/other")
    await there.send(key="a,b")
    await there.send(key=None)
    await there.send(b"x" * 65, key="large")
    await there.send(key="large", headers=[("content-length", "65")])
    await there.send(key="caught", headers=[("cookie", "session=1")])


async def _duplicate_errors(there: Door, app: Answering) -> None:
    for _ in range(2):
        await there.send(headers=[("idempotency-raise-on-duplicate", "?1")])


async def _nothing_kept(there: Door, app: Answering) -> None:
    for _ in range(2):
        await there.send()


async def _races(there: Door, app: Answering) -> None:
    """Those that come while the first is executed. Whether they are executed themselves is what differs."""
    async with there.in_flight(app):
        later = [there.begin() for _ in range(3)]
        await until(lambda: len(there.seen.all) == 3 or app.calls == 4)  # type: ignore[attr-defined]  # of `population`
        if app.calls == 4:
            await until(lambda: there.middleware.admissions.in_flight.slots.claims == 0)
    for call in later:
        await call.answered()


async def _waits(there: Door, app: Answering) -> None:
    async with there.in_flight(app):
        later = there.begin(headers=[("prefer", "wait=30")])
        if there.is_shadowed:  # type: ignore[attr-defined]  # of `population`
            await app.arrivals(2)
        for _ in range(20):
            await asyncio.sleep(0)
    await later.answered()


async def _raises(there: Door, app: Answering) -> None:
    for _ in range(2):
        with suppress(Exception):  # the app's own
            await there.send()


@pytest.mark.parametrize(
    ("population", "answers", "options"),
    [
        (_retries, (201, 500, 409), {}),
        (_callers, (201,), {}),
        (_callers, (201,), {"require_scope": True}),
        (_retries, (500, 201, 400), {}),
        (_retries, (500, 201, 400), {"on_error": "replay"}),
        (_retries, (502, 201, 400), {}),
        (_retries, (502, 201, 400), {"on_unknown": "retry"}),
        (_retries, (429, 204, 204), {}),
        (_retries, (201,), {"keep_body": False}),
        (_retries, (201,), {"require_scope": True}),
        (_retries, (201,), {"caller": lambda scope: 1 / 0}),
        (_wrong_requests, (201,), {"max_request_body": 64}),
        (_wrong_requests, (201,), {"max_request_body": 64, "on_missing_key": "reject"}),
        (_wrong_requests, (201,), {"max_request_body": 64, "on_missing_key": "generate"}),
        (_wrong_requests, (201,), {"max_request_body": 64, "on_mismatch": "warn"}),
        (_retries, (201,), {"new_keys_per_caller": "1/h"}),
        (_wrong_requests, (201,), {"new_keys_per_caller": "1/h"}),
        (_duplicate_errors, (201,), {}),
        (_nothing_kept, (201,), {"max_result": 3}),
        (_races, (201,), {}),
        (_waits, (201,), {}),
        (_waits, (502,), {}),
        (_raises, (RuntimeError("no"),), {}),
        (_raises, (NotProcessed("no connection"),), {}),
        (_raises, (OutcomeUnknown("it broke"),), {}),
    ],
)
async def test_what_is_observed_is_what_enforcement_does(
    cache: Any, namespace: str, population: Population, answers: tuple[Any, ...], options: dict[str, Any]
) -> None:
    """The same requests, once under enforcement and once observed. What a later request's own execution says changes nothing."""
    decided: list[list[Decided]] = []
    for share in (100, 0):
        held = population in (_races, _waits)
        app = Answering(*answers, held=held)
        there = Door(app, cache, f"{namespace}{share}", enforce=share, shadow=True, observe=(seen := Seen()), **options)
        there.seen, there.is_shadowed = seen, share == 0  # type: ignore[attr-defined]  # for the population
        await population(there, app)
        assert await there.middleware.drain(PATIENCE) == 0
        assert {each.mode for each in seen.all} == {"enforced" if share else "shadow"}
        decided.append(sorted(seen.decided) if held else seen.decided)
        assert (there.slots, there.buffered) == (0, 0)
    assert decided[0] == decided[1]
    assert decided[0]


# -- the client, and the app, meet nothing of it ----------------------------------------------------------------------


async def test_the_request_and_its_response_are_untouched(door: MakeDoor) -> None:
    headers = [(b"X-Twice", b"1"), (b"X-Twice", b"2"), (b"Idempotent-Replayed", b"theirs"), (b"cache-status", b"hit")]
    there = door(app := Answering(201, 409, headers=headers), **SHADOW)
    sent: Lines = [("Idempotency-Attempt", "7"), ("prefer", "wait=3"), ("x-a", "b")]
    for _ in range(2):
        call = await there.send(headers=sent)
        assert call.headers == headers
    assert call.status == 409
    assert [message["type"] for message in call.messages] == ["http.response.start", "http.response.body"]
    assert app.given() == [b"answer 1", b"answer 2"]
    assert call.body == b"answer 2"
    for scope in app.scopes:
        assert [line for line in scope["headers"] if line[0] != b"host"] == [
            *((name.encode(), value.encode()) for name, value in sent),
            (b"idempotency-key", b"k-1"),
        ]


@pytest.mark.parametrize("options", [{}, {"shadow": True}])
async def test_a_key_that_is_generated_is_neither_sent_nor_answered(door: MakeDoor, options: dict[str, Any]) -> None:
    there = door(app := Answering(201), enforce=0, on_missing_key="generate", **options)
    call = await there.send(key=None)
    assert call.headers == []
    assert app.lines("idempotency-key") == []


async def test_what_is_neither_enforced_nor_observed_makes_no_record(door: MakeDoor) -> None:
    there = door(app := Answering(201), enforce=0, observe=(seen := Seen()))
    for _ in range(2):
        assert (await there.send()).headers == []
    assert app.calls == 2
    assert await there.state() is State.ABSENT
    assert seen.all == []


async def test_pieces_pass_as_they_come_both_ways(door: MakeDoor) -> None:
    """The app has the first piece before the last one was sent, and the client the app's first one before the app has ended."""
    more, rest = asyncio.Event(), asyncio.Event()
    got: list[bytes] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        got.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"early", "more_body": True})
        got.append((await receive())["body"])
        await rest.wait()
        await send({"type": "http.response.body", "body": b"late"})

    there = door(app, observe=(seen := Seen()), **SHADOW)
    call = there.begin(pieces=(b"first", more, b"second"))
    await until(lambda: call.body == b"early")
    assert got == [b"first"]
    more.set()
    await until(lambda: len(got) == 2)
    rest.set()
    assert (await call.answered()).body == b"earlylate"
    await seen.have(1)
    assert seen.decided == [("first", 200, 1, "POST")]
    assert (await there.record()).response.body == b"earlylate"  # type: ignore[union-attr]  # it is there


@pytest.mark.parametrize("status", [200, 204])
async def test_an_app_that_reads_no_body_is_observed(door: MakeDoor, status: int) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    there = door(app, observe=(seen := Seen()), **SHADOW)
    for _ in range(2):
        assert (await there.send()).status == status
    await seen.have(2)
    assert [each.decision for each in seen.all] == ["first", "replayed"]


async def test_a_body_that_did_not_arrive_whole_is_no_request(door: MakeDoor) -> None:
    there = door(Answering(201), observe=(seen := Seen()), **SHADOW)
    call = there.begin(pieces=(b"half", None))
    await call.answered()
    assert await there.middleware.drain(PATIENCE) == 0
    assert await there.state() is State.ABSENT
    assert seen.all == []


async def test_a_large_body_is_not_held_beyond_what_the_fingerprint_may_have(door: MakeDoor) -> None:
    more = asyncio.Event()
    there = door(Answering(201), max_request_body=1000, observe=(seen := Seen()), **SHADOW)
    call = there.begin(pieces=(b"x" * 600, b"x" * 600, more, b"x" * 10_000))
    await until(lambda: there.middleware.door.buffered.bytes == 0 and not call.pieces[1:])
    more.set()
    assert (await call.answered()).status == 201
    await seen.have(1)
    assert seen.decided == [("payload-too-large", 413, 0, "POST")]


async def test_the_app_raises_what_it_raises(door: MakeDoor) -> None:
    error = RuntimeError("theirs")
    there = door(Answering(error), on_error="replay", **SHADOW)
    with pytest.raises(RuntimeError) as raised:
        await there.send()
    assert raised.value is error
    await there.becomes(State.FAILED)


async def test_an_observer_that_raises_changes_nothing(door: MakeDoor, caplog: pytest.LogCaptureFixture) -> None:
    def observe(_: Observation) -> None:
        raise RuntimeError("a user's")

    there = door(Answering(201), observe=observe, **SHADOW)
    assert (await there.send()).status == 201
    await until(lambda: "the observer failed" in caplog.text)


async def test_an_extension_whose_bytes_could_not_be_copied_is_not_offered(door: MakeDoor) -> None:
    there = door(app := Answering(201), **SHADOW)
    await there.send(extensions={"http.response.pathsend": {}, "http.response.trailers": {}})
    assert set(app.scopes[0]["extensions"]) == {"http.response.trailers"}


# -- the records are as ever ------------------------------------------------------------------------------------------


async def test_the_first_response_is_what_enforcement_replays_later(door: MakeDoor, cache: Any) -> None:
    app = Answering(201, 500, 409, headers=[(b"location", b"/payments/1")])
    shadow, enforced = door(app, **SHADOW), door(app)
    for _ in range(3):
        await shadow.send()
    await shadow.middleware.drain(PATIENCE)
    retry = await enforced.send()
    assert (retry.status, retry.body, retry.replayed) == (201, b"answer 1", True)
    assert retry.value("location") == "/payments/1"
    assert app.calls == 3


async def test_a_retry_that_comes_after_the_last_byte_meets_the_record(door: MakeDoor) -> None:
    """The last byte waits for the record: retries that are sent as soon as the answer is there are replays."""
    there = door(Answering(201), observe=(seen := Seen()), **SHADOW)
    for number in range(100):
        for _ in range(2):
            await there.send(key=f"k-{number}")
    await seen.have(200)
    assert sorted(each.decision for each in seen.all) == ["first"] * 100 + ["replayed"] * 100


async def test_a_client_that_leaves_does_not_end_the_first_request(door: MakeDoor) -> None:
    """As under enforcement, where a retry gets the result. One that is not the first ends as it would without us."""
    ends: list[str] = []
    go = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        gone = asyncio.ensure_future(receive())
        await asyncio.wait([gone, asyncio.ensure_future(go.wait())], return_when=asyncio.FIRST_COMPLETED)
        ends.append("left" if gone.done() else "goes on")
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    there = door(app, observe=(seen := Seen()), **SHADOW)
    first = there.begin()
    await there.becomes(State.IN_FLIGHT)
    first.left.set()
    second = there.begin()
    second.left.set()
    await second.answered()
    assert ends == ["left"]
    go.set()
    await first.answered()
    assert ends == ["left", "goes on"]
    await seen.have(2)
    assert sorted(seen.decided) == [("first", 201, 1, "POST"), ("in-flight", 409, 1, "POST")]
    assert await there.state() is State.SUCCEEDED


@pytest.mark.parametrize(("enforce", "is_enforced"), [(0, False), (100, True)])
async def test_a_dependency_that_ends_late_decides_what_is_recorded(
    door: MakeDoor, enforce: int, is_enforced: bool
) -> None:
    """What is observed waits for it; the client doesn't."""
    gate, api = asyncio.Event(), FastAPI()

    async def session() -> AsyncIterator[None]:
        yield
        await gate.wait()
        raise RuntimeError("the commit failed")

    @api.post("/payments", status_code=201)
    async def pay(_: Annotated[None, Depends(session)]) -> None:
        pass

    there = door(api, enforce=enforce, shadow=True, observe=(seen := Seen()))
    call = there.begin()
    if is_enforced:
        await there.becomes(State.IN_FLIGHT)
        gate.set()
        await call.answered()
    else:
        await until(lambda: call.done)
        assert call.status == 201
        await there.becomes(State.IN_FLIGHT)
        gate.set()
        with pytest.raises(RuntimeError, match="the commit failed"):
            await call.answered()
    await there.becomes(State.UNKNOWN)
    await seen.have(1)
    assert seen.decided == [("upstream-failed", 502, 1, "POST")]


# -- without the cache ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["fail_closed", "fail_open"])
async def test_a_cache_that_hangs_holds_up_nobody_for_longer_than_its_time_out(
    server: RedisServer, namespace: str, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    cache = RedisCache.from_url(server.url, timeout=0.2)
    there = Door(app := Answering(201), cache, namespace, observe=(seen := Seen()), on_cache_down=policy, **SHADOW)
    await there.send(key="before")
    server.pause()
    try:
        for number in range(3):
            call = await there.send(key=f"k-{number}")
            assert (call.status, call.body, call.headers) == (201, b"answer %d" % app.calls, [])
        await seen.have(4)
    finally:
        server.resume()
    decision = {"fail_closed": "cache-unavailable", "fail_open": "bypass"}[policy]
    assert [each.decision for each in seen.all] == ["first", *[decision] * 3]
    assert not [record for record in caplog.records if "refused" in record.getMessage()]
    await there.middleware.drain(PATIENCE)
    await cache.close()


async def test_a_cache_that_is_killed_changes_nothing_for_clients(server: RedisServer, namespace: str) -> None:
    cache = RedisCache.from_url(server.url, timeout=2)
    there = Door(app := Answering(201, held=True), cache, namespace, observe=(seen := Seen()), **SHADOW)
    call = there.begin()
    await there.becomes(State.IN_FLIGHT)
    server.stop()
    later = there.begin(key="later")
    await app.arrivals(2)
    app.release()
    for each in (call, later):
        await each.answered()
        assert (each.status, each.headers) == (201, [])
    server.start()
    await until(lambda: not there.middleware.admissions.in_flight.owed.by_key)
    await there.becomes(State.SUCCEEDED)
    await seen.have(2)
    await there.middleware.drain(PATIENCE)
    await cache.close()


# -- what is logged of it ------------------------------------------------------------------------------------------------


async def test_a_line_says_in_what_a_replay_would_have_differed(
    door: MakeDoor, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "oncegate.shadow")
    answers = iter(
        [
            (201, [(b"x-request-id", b"1"), (b"date", b"today"), (b"location", b"/1")], b"receipt 1"),
            (201, [(b"x-request-id", b"2"), (b"date", b"tomorrow"), (b"location", b"/1")], b"receipt 1"),
            (409, [(b"location", b"/1"), (b"x-request-id", b"1")], b"receipt 2"),
            (201, [(b"x-request-id", b"1"), (b"location", b"/1"), (b"set-cookie", b"a=b")], b"receipt 1"),
        ]
    )

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        status, headers, body = next(answers)
        headers = [*headers, (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for piece in (body[:3], body[3:]):
            await send({"type": "http.response.body", "body": piece, "more_body": piece == body[:3]})

    there = door(app, observe=(seen := Seen()), **SHADOW)
    for _ in range(4):
        await there.send(headers=BASIC)
    await seen.have(4)
    logged = [
        [line.get(name) for name in ("decision", "status", "upstream_status", "first_status", "differs", "headers")]
        for line in lines_of(caplog)
    ]
    assert logged == [
        ["first", 201, 201, None, None, None],
        ["replayed", 201, 201, 201, ["headers"], ["x-request-id"]],
        ["replayed", 201, 409, 201, ["status", "body"], []],
        ["replayed", 201, 201, 201, [], []],
    ]
    assert {line["mode"] for line in lines_of(caplog)} == {"shadow"}
    assert {line["record"] for line in lines_of(caplog)} == {seen.all[0].record}


async def test_no_key_no_credential_no_query_and_no_body_is_in_a_line(
    door: MakeDoor, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "oncegate")
    there = door(Answering(201, body=b"answer-secret"), observe=(seen := Seen()), on_missing_key="reject", **SHADOW)
    for key in ("key-secret", "key-secret", "key,secret", None):
        for body in (b"body-secret", b"body-secret-2"):
            await there.send(
                body,
                key=key,
                path="/path-secret",
                query_string=b"q=query-secret",
                headers=[("authorization", "a-secret")],
            )
    await seen.have(8)
    assert len(lines_of(caplog)) == 8
    for record in caplog.records:
        logged = str({name: value for name, value in vars(record).items() if name not in ("pathname", "exc_info")})
        assert "secret" not in logged + record.getMessage()


# -- a part of the keys -----------------------------------------------------------------------------------------------


async def test_each_key_is_on_one_side_and_the_other_one_is_observed(door: MakeDoor) -> None:
    there = door(app := Answering(201), enforce=50, shadow=True, observe=(seen := Seen()))
    for number in range(40):
        for caller in ("Basic alice", "Basic bob"):
            for _ in range(2):
                await there.send(key=f"k-{number}", headers=[("authorization", caller)])
    await seen.have(160)
    modes: dict[str, set[str]] = {}
    for each in seen.all:
        modes.setdefault(each.record.partition(":")[0], set()).add(each.mode)
    assert len(modes) == 40
    assert all(len(each) == 1 for each in modes.values()), "a key on two sides"
    enforced = sum(each == {"enforced"} for each in modes.values())
    assert 5 < enforced < 35
    assert app.calls == enforced * 2 + (40 - enforced) * 4


async def test_without_a_key_that_can_be_read_nothing_is_enforced_below_100(door: MakeDoor) -> None:
    options: dict[str, Any] = {"enforce": 99.9, "shadow": True, "on_missing_key": "reject"}
    there = door(app := Answering(201), observe=(seen := Seen()), **options)
    for key in (None, "a,b"):
        assert (await there.send(key=key)).status == 201
    await seen.have(2)
    assert [(each.decision, each.mode) for each in seen.all] == [("key-missing", "shadow"), ("key-invalid", "shadow")]
    assert app.calls == 2


async def test_a_route_has_a_share_of_its_own(door: MakeDoor) -> None:
    routes = [Route(path="/new/*", enforce=0, shadow=True), Route(path="/off/*", enforce=0)]
    there = door(Answering(201), routes=routes, observe=(seen := Seen()))
    for path in ("/new/1", "/off/1", "/payments"):
        for _ in range(2):
            await there.send(path=path, key=path)
    await seen.have(4)
    assert sorted((each.route, each.decision, each.mode) for each in seen.all) == [
        ("*", "first", "enforced"),
        ("*", "replayed", "enforced"),
        ("/new/*", "first", "shadow"),
        ("/new/*", "replayed", "shadow"),
    ]


def test_what_is_submitted_can_not_be_observed() -> None:
    async def submit(scope: Any, receive: Any, send: Any) -> None: ...

    with pytest.raises(ValueError, match=r'routes.0.enforce: is 5, and mode = "async"'):
        Door(Answering(), MemoryCache(), "n", routes=[Route(path="/a", mode="async")], submit=submit, enforce=5)
    Door(
        Answering(), MemoryCache(), "n", routes=[Route(path="/a", mode="async", enforce=100)], submit=submit, enforce=5
    )


async def test_it_is_observed_beside_each_other(door: MakeDoor) -> None:
    """Many at once: each is answered by its own execution, and of each key one is the first."""
    there = door(app := Answering(201), observe=(seen := Seen()), **SHADOW)
    calls: list[Call] = [there.begin(key=f"k-{number % 10}") for number in range(200)]
    bodies = {(await call.answered()).body for call in calls}
    assert len(bodies) == app.calls == 200
    await seen.have(200)
    decisions = [each.decision for each in seen.all]
    assert decisions.count("first") == 10
    assert set(decisions) <= {"first", "replayed", "in-flight"}
