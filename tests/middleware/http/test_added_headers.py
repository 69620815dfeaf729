"""The headers that the gateway adds, and what the upstream is sent.

Rules of docs/contract.md: R3.1, R3.2, R3.3, R3.4, R3.5, R3.7, R3.8, R3.19, R3.20, R3.21.
"""

import pytest

from oncegate.cache.record import State
from oncegate.middleware.http.cors import CrossOrigin
from oncegate.middleware.outcome.problem_kinds import KINDS
from oncegate.middleware.outcome.problems import problem
from oncegate.middleware.rules.headers.added_headers import ADDED_HEADERS
from oncegate.middleware.rules.settings import Route
from tests.middleware.conftest import MakeDoor
from tests.middleware.door import Answered, Answering, waits

HIT = "oncegate; hit; ttl="


@pytest.mark.parametrize("spelling", ["abc", '"abc"', '"a b";v=1'])
async def test_idempotency_key_is_echoed_in_the_form_the_client_sent(door: MakeDoor, spelling: str) -> None:
    there = door(Answering(201, headers=[(b"Idempotency-Key", b"the upstream's")]))
    assert (await there.send(key=spelling)).value("idempotency-key") == spelling
    assert (await there.send(key=spelling)).value("idempotency-key") == spelling
    assert (await there.send(b"other", key=spelling)).value("idempotency-key") == spelling, "on a problem, too"


async def test_idempotency_key_is_echoed_as_this_request_spelled_it(door: MakeDoor) -> None:
    there = door(Answering(201))
    await there.send(key="abc")
    assert (await there.send(key='"abc"')).value("idempotency-key") == '"abc"'


async def test_idempotent_replayed_is_on_replays_alone(door: MakeDoor) -> None:
    there = door(Answering(201, headers=[(b"Idempotent-Replayed", b"true")]))
    first = await there.send()
    assert not first.replayed, "the upstream's own is dropped"
    assert (await there.send()).values(b"idempotent-replayed") == [b"true"]
    assert not (await there.send(b"other")).replayed
    assert not (await there.send(headers=[("idempotency-raise-on-duplicate", "1")])).replayed


async def test_cache_status_of_an_execution_that_is_kept(door: MakeDoor) -> None:
    there = door(Answering(201, headers=[(b"cache-status", b"upstream; hit")]))
    ours = b"oncegate; fwd=miss; stored; ttl=86400"
    assert (await there.send()).values(b"cache-status") == [b"upstream; hit", ours], "ours is the last of the list"
    replay = (await there.send()).values(b"cache-status")
    assert replay[0] == b"upstream; hit"
    assert len(replay) == 2
    assert replay[1].startswith(HIT.encode())


@pytest.mark.parametrize(("status", "kept"), [(201, 1000), (302, 1000), (404, 7), (500, 7), (502, 1000), (999, 7)])
async def test_cache_status_of_each_kind_that_is_kept_tells_for_how_long(
    door: MakeDoor, status: int, kept: int
) -> None:
    answer = await door(Answering(status), ttl=1000, error_ttl=7.9).send()
    assert answer.value("cache-status") == f"oncegate; fwd=miss; stored; ttl={kept}"


@pytest.mark.parametrize("status", [401, 403, 408, 425, 429])
async def test_cache_status_of_an_execution_that_is_released(door: MakeDoor, status: int) -> None:
    answer = await door(Answering(status)).send()
    assert answer.value("cache-status") == "oncegate; fwd=miss"


async def test_cache_status_follows_the_route_s_statuses(door: MakeDoor) -> None:
    routes = [Route(path="/payments", status={402: "release", 429: "failure"})]
    there = door(Answering(402, 429), routes=routes)
    assert (await there.send()).value("cache-status") == "oncegate; fwd=miss"
    assert (await there.send()).value("cache-status") == "oncegate; fwd=miss; stored; ttl=60"


async def test_cache_status_of_a_replay_tells_the_seconds_left(door: MakeDoor) -> None:
    there = door(Answering(201), ttl=1000)
    await there.send()
    value = (await there.send()).value("cache-status") or ""
    assert value.startswith(HIT)
    assert 900 < int(value.removeprefix(HIT)) <= 1000


async def test_cache_status_and_replayed_are_on_no_problem(door: MakeDoor) -> None:
    there = door(Answering(201))
    await there.send()
    answer = await there.send(b"other")
    assert (answer.value("cache-status"), answer.value("idempotent-replayed")) == (None, None)


async def test_retry_after_is_on_in_flight(door: MakeDoor) -> None:
    there = door(app := Answering(201, held=True))
    async with there.in_flight(app) as first:
        assert int((await there.send()).value("retry-after") or 0) >= 1
        assert (await there.send(b"other")).value("retry-after") is None
    assert first.value("retry-after") is None


def test_retry_after_is_on_what_time_can_change_and_on_nothing_else() -> None:
    carriers = set()
    for slug in KINDS:
        answer = problem(slug, "why", docs_url="https://docs.example")
        if b"retry-after" in dict(answer.headers):
            carriers.add(slug)
    assert carriers == {"in-flight", "cache-unavailable", "caller-unverifiable", "overloaded", "too-many-keys"}
    assert all(KINDS[slug].retryable for slug in carriers)


async def test_retry_after_is_on_503(door: MakeDoor) -> None:
    there = door(app := Answering(201, held=True), max_in_flight=1)
    async with there.in_flight(app):
        refused = await there.send(key="k-2")
        assert refused.status == 503
        assert int(refused.value("retry-after") or 0) >= 1


async def test_idempotency_attempt_counts_from_one_and_a_client_s_own_is_dropped(door: MakeDoor) -> None:
    there = door(app := Answering(500, 500, 201))
    for number in ("1", "2", "3"):
        await there.send(headers=[("idempotency-attempt", "99")])
        assert app.lines("idempotency-attempt") == [number]
    assert (await there.send()).replayed
    record = await there.record()
    assert (record.state, record.attempt) == (State.SUCCEEDED, 3)


async def test_everything_else_of_the_request_reaches_the_app(door: MakeDoor) -> None:
    app = Answering(201)
    lines = [("x-a", "1"), ("x-b", "2"), ("x-a", "3"), ("prefer", "wait=1"), ("idempotency-raise-on-duplicate", "?1")]
    await door(app).send(b"body", headers=lines, path="/p%2Fq", query_string=b"a=1&a=2", state={"shared": 1})
    scope = app.scopes[0]
    assert [line for line in scope["headers"] if line[0] not in (b"idempotency-key", b"idempotency-attempt")] == [
        (b"host", b"api.example"),
        *[(name.encode(), value.encode()) for name, value in lines],
    ]
    assert (scope["raw_path"], scope["query_string"], scope["state"]) == (b"/p%2Fq", b"a=1&a=2", {"shared": 1})
    assert app.bodies == [b"body"]


# -- each is declared once --------------------------------------------------------------------------------------------

OF_THE_APP = {"x-app", "content-length"}
OF_ANY_ANSWER = {"content-type", "connection", "date", "vary"} | {
    "access-control-allow-origin",
    "access-control-expose-headers",
}
"""What frames an answer, or says who may read it."""


async def test_every_header_that_is_added_is_declared_and_every_declared_one_is_added(door: MakeDoor) -> None:
    """What is added in one place and not declared would be missing in all that `ADDED_HEADERS` feeds."""
    cors = CrossOrigin(["https://shop.example"], credentials=False)
    app = Answering(201, headers=[(b"x-app", b"1")], held=True)
    rules = [Route(path="/known", require_scope=True), Route(path="/small", max_request_body=1)]
    options = {"docs_url": "https://docs.example", "watch": (answered := Answered())}
    there = door(app, routes=rules, cors=cors, date_header=True, **options)
    from_shop = [("origin", "https://shop.example")]
    async with there.in_flight(app, headers=from_shop) as first:
        in_flight = await there.send(headers=from_shop)
        waiter = await waits(lambda: there.begin(headers=[*from_shop, ("prefer", "wait=30")]), answered)
    answers = [
        first,
        in_flight,
        await waiter.answered(),
        await there.send(headers=from_shop),
        await there.send(b"other", headers=from_shop),
        await there.send(key=None, headers=from_shop),
        await there.send(key=" ", headers=from_shop),
        await there.send(path="/known", key="k-2", headers=from_shop),
        await there.send(path="/small", key="k-3", headers=from_shop),
    ]
    assert [answer.status for answer in answers] == [201, 409, 201, 201, 422, 201, 400, 401, 413]
    added = {name.decode() for answer in answers for name, _ in answer.headers} - OF_THE_APP - OF_ANY_ANSWER
    assert added == {each.name.lower() for each in ADDED_HEADERS}
