"""`Prefer: wait`, and what a waiter gets.

Rules of docs/contract.md: R2.15, R2.16, R2.17, R2.18, R2.19, R2.22, R3.2, R3.9.
"""

import asyncio
from collections.abc import Callable
from functools import partial

import pytest
from pydantic import ValidationError

from oncegate.cache.record import ClaimRequest, State
from oncegate.middleware.rules.settings import IdempotencySettings, Route
from tests.middleware.conftest import MakeDoor
from tests.middleware.door import Answered, Answering, Call, Door, waits

LONG = [("prefer", "wait=50")]
RESPOND = ("prefer", "respond-async")


@pytest.fixture(params=["one process", "two processes"])
def pair(request: pytest.FixtureRequest, door: MakeDoor) -> "Pair":
    """Two doors to one app: the first request goes through one, those that wait through the other."""
    return Pair(door, request.param == "one process")


class Pair:
    def __init__(self, door: MakeDoor, same: bool) -> None:
        self._door = door
        self._same = same
        self._answered = Answered()

    def __call__(self, app: Answering, **settings: object) -> tuple[Door, Door]:
        first = self._door(app, watch=self._answered, **settings)
        return first, first if self._same else self._door(app, watch=self._answered, **settings)

    async def waits(self, begin: Callable[[], Call]) -> Call:
        """The request that ``begin`` makes, once it waits."""
        return await waits(begin, self._answered)

    async def waiting(self, app: Answering, first: Door, second: Door, number: int = 1) -> tuple[Call, list[Call]]:
        """A first request that its app holds, and so many that wait for it."""
        holder = first.begin()
        await app.arrivals()
        return holder, [await self.waits(lambda: second.begin(headers=LONG)) for _ in range(number)]


async def test_wait_without_it_a_concurrent_request_is_refused_at_once(door: MakeDoor) -> None:
    there = door(app := Answering(201, held=True))
    async with there.in_flight(app) as first:
        second = await there.send()
        assert (second.status, second.code) == (409, "in-flight")
        assert second.value("preference-applied") is None
    assert (first.status, app.calls) == (201, 1)


async def test_wait_gives_the_outcome_as_a_replay(pair: Pair) -> None:
    app = Answering(201, held=True)
    holder, waiters = await pair.waiting(app, *pair(app), number=5)
    app.release()
    assert not (await holder.answered()).replayed
    for waiter in waiters:
        await waiter.answered()
        assert (waiter.status, waiter.body) == (201, b"answer 1")
        assert waiter.replayed
        assert waiter.value("preference-applied") == "wait=30", "capped by max_wait"
        assert (waiter.value("cache-status") or "").startswith("oncegate; hit; ttl=86")
    assert app.calls == 1


@pytest.mark.parametrize("on_error", ["retry", "replay"])
async def test_wait_gives_the_error_too_whatever_on_error_says(pair: Pair, on_error: str) -> None:
    app = Answering(500, held=True)
    holder, waiters = await pair.waiting(app, *pair(app, on_error=on_error), number=3)
    app.release()
    await holder.answered()
    for waiter in waiters:
        await waiter.answered()
        assert (waiter.status, waiter.body, waiter.replayed) == (500, b"answer 1", True)
    assert app.calls == 1


async def test_wait_for_an_app_that_raises_gives_the_servers_answer_to_that(pair: Pair) -> None:
    app = Answering(RuntimeError("broken"), held=True)
    holder, (waiter,) = await pair.waiting(app, *pair(app))
    app.release()
    await asyncio.wait([holder.task])
    assert isinstance(holder.task.exception(), RuntimeError)
    await waiter.answered()
    assert (waiter.status, waiter.body, waiter.replayed) == (500, b"Internal Server Error", True)


async def test_wait_after_a_release_exactly_one_waiter_makes_the_next_attempt(pair: Pair) -> None:
    app = Answering(429, 201, held=True)
    holder, waiters = await pair.waiting(app, *pair(app), number=5)
    app.release()
    assert (await holder.answered()).status == 429
    for waiter in waiters:
        await waiter.answered()
        assert (waiter.status, waiter.body) == (201, b"answer 2")
        assert waiter.value("preference-applied") == "wait=30", "on an execution after a release, too"
    assert sorted(waiter.replayed for waiter in waiters) == [False, True, True, True, True]
    assert app.calls == 2
    assert [app.lines("idempotency-attempt", call) for call in (0, 1)] == [["1"], ["1"]]


async def test_wait_for_an_unknown_outcome_is_refused_by_the_policy(pair: Pair) -> None:
    app = Answering(504, held=True)
    holder, (waiter,) = await pair.waiting(app, *pair(app))
    app.release()
    await holder.answered()
    assert (await waiter.answered()).code == "outcome-unknown"
    assert waiter.value("preference-applied") == "wait=30"
    assert app.calls == 1


async def test_wait_for_an_unknown_outcome_tries_again_where_the_policy_says_so(pair: Pair) -> None:
    app = Answering(504, 201, held=True)
    holder, (waiter,) = await pair.waiting(app, *pair(app, on_unknown="retry"))
    app.release()
    await holder.answered()
    await waiter.answered()
    assert (waiter.status, waiter.replayed) == (201, False)
    assert app.lines("idempotency-attempt") == ["2"]


async def test_wait_with_raise_on_duplicate_gives_the_error_with_the_result(pair: Pair) -> None:
    app = Answering(201, held=True)
    first, second = pair(app)
    async with first.in_flight(app):
        waiter = await pair.waits(lambda: second.begin(headers=[*LONG, ("idempotency-raise-on-duplicate", "?1")]))
    assert (await waiter.answered()).code == "duplicate"
    assert waiter.problem["original_result"]["body"] == "answer 1"


async def test_wait_that_is_over_is_refused_as_in_flight(pair: Pair) -> None:
    app = Answering(201, held=True)
    first, second = pair(app, max_wait=1)
    async with first.in_flight(app):
        waiter = await second.send(headers=LONG)
        assert (waiter.status, waiter.code) == (409, "in-flight")
        assert waiter.value("preference-applied") == "wait=1"


async def test_wait_ends_when_the_lease_of_a_dead_owner_lapses(pair: Pair) -> None:
    app = Answering(201)
    first, second = pair(app)
    key, token = first.look_up_key(), b"of a dead owner!"
    claim = await first.cache.claim(
        key, ClaimRequest(token=token, fingerprint=await fingerprint_of(first), lease_ms=60_000, retention_ms=86400000)
    )
    assert claim.won
    waiter = await pair.waits(lambda: second.begin(headers=LONG))
    assert await first.cache.renew(key, token=token, lease_ms=1)  # and now, as good as none is left of the lease
    await waiter.answered()
    assert (waiter.code, waiter.value("preference-applied")) == ("outcome-unknown", "wait=30")
    assert app.calls == 0


async def fingerprint_of(there: Door) -> bytes:
    """The fingerprint that the door gives to the default request."""
    await there.send(key="another")
    record = await there.record("another")
    there.middleware.door.app.scopes.clear()  # type: ignore[attr-defined]  # the test's own
    return record.fingerprint


async def test_wait_of_another_payload_is_refused_without_waiting(pair: Pair) -> None:
    app = Answering(201, held=True)
    first, second = pair(app)
    async with first.in_flight(app):
        other = await second.send(b"other", headers=LONG)
        assert (other.code, other.value("preference-applied")) == ("key-reused", None)


async def test_wait_where_nothing_is_in_flight_is_not_applied(door: MakeDoor) -> None:
    there = door(Answering(201))
    assert (await there.send(headers=LONG)).value("preference-applied") is None
    replay = await there.send(headers=LONG)
    assert replay.replayed
    assert replay.value("preference-applied") is None


@pytest.mark.parametrize(
    ("lines", "applied"),
    [
        (["wait=7"], "wait=7"),
        (["WAIT = 7"], "wait=7"),
        (["respond-async, wait=7"], "wait=7"),
        (["wait=7; x=1, handling=lenient"], "wait=7"),
        (['return=minimal; a="b", wait="7"'], "wait=7"),
        (["respond-async", "wait=7"], "wait=7"),
        (["wait=7, wait=9"], "wait=7"),
        (["wait=99999999999999999999"], "wait=30"),
        (['a="' + "b" * 1000 + '"', "wait=7"], "wait=7"),
        (['a="' + "b" * 2000 + '"', "wait=7"], None),  # more than anybody would send is ignored
        *[([other], None) for other in ("wait=0", "wait", "wait=", "wait=-1", "wait=x", "await=7")],
        (["respond-async; wait=7"], None),
        (['a="b, wait=7, c"'], None),
    ],
)
async def test_wait_is_found_among_several_preferences(door: MakeDoor, lines: list[str], applied: str | None) -> None:
    there = door(app := Answering(201, held=True))
    async with there.in_flight(app):
        waiter = there.begin(headers=[("prefer", line) for line in lines])
        if applied is None:
            assert (await waiter.answered()).code == "in-flight"
        else:
            await there.state()
    await waiter.answered()
    assert (waiter.status, waiter.value("preference-applied")) == (201 if applied else 409, applied)


async def test_wait_by_a_client_that_leaves_harms_nobody(pair: Pair) -> None:
    app = Answering(201, held=True)
    first, second = pair(app)
    holder, (leaver, stayer) = await pair.waiting(app, first, second, number=2)
    await leaver.gone()
    app.release()
    assert (await holder.answered()).status == 201
    assert (await stayer.answered()).replayed
    assert await first.state() is State.SUCCEEDED
    assert app.calls == 1


async def test_wait_that_ends_in_a_refusal_was_applied_too(door: MakeDoor) -> None:
    first, answered = door(refusing := Answering(429, held=True)), Answered()
    second = door(busy := Answering(held=True), max_in_flight=1, watch=answered)
    async with second.in_flight(busy, key="k-2"):  # takes the only slot there: nobody is left to make the next attempt
        async with first.in_flight(refusing):
            waiter = await waits(lambda: second.begin(headers=LONG), answered, "get")
        assert (await waiter.answered()).code == "overloaded"
        assert waiter.value("preference-applied") == "wait=30"


async def test_wait_of_a_route_lets_concurrent_duplicates_wait_that_ask_for_nothing(pair: Pair) -> None:
    app = Answering(201, held=True)
    first, second = pair(app, wait=20)
    holder = first.begin()
    await app.arrivals()
    waiters = [await pair.waits(partial(second.begin, headers=lines)) for lines in ([], [], [RESPOND])]
    app.release()
    assert not (await holder.answered()).replayed
    assert holder.value("preference-applied") is None, "it has waited for nobody"
    for waiter in waiters:
        await waiter.answered()
        assert (waiter.status, waiter.body, waiter.replayed) == (201, b"answer 1", True)
        assert waiter.value("preference-applied") == "wait=20"
    assert app.calls == 1


@pytest.mark.parametrize("wait", [0, 1])
async def test_wait_of_a_route_is_shortened_by_the_header(pair: Pair, wait: int) -> None:
    app = Answering(201, held=True)
    first, second = pair(app, wait=20)
    async with first.in_flight(app):
        waiter = await second.send(headers=[("prefer", f"wait={wait}")])
        assert (waiter.status, waiter.code) == (409, "in-flight")
        assert waiter.value("preference-applied") == (f"wait={wait}" if wait else None)


@pytest.mark.parametrize(("wanted", "granted"), [(25, 25), (500, 28)])
async def test_wait_of_a_route_is_lengthened_by_the_header_within_max_wait(
    pair: Pair, wanted: int, granted: int
) -> None:
    app = Answering(201, held=True)
    first, second = pair(app, wait=1, max_wait=28)
    async with first.in_flight(app):
        waiter = await pair.waits(lambda: second.begin(headers=[("prefer", f"wait={wanted}")]))
    await waiter.answered()
    assert (waiter.replayed, waiter.value("preference-applied")) == (True, f"wait={granted}")


async def test_wait_of_a_route_that_is_over_is_refused_as_in_flight(pair: Pair) -> None:
    app = Answering(201, held=True)
    first, second = pair(app, wait=1)
    async with first.in_flight(app):
        waiter = await second.send()
        assert (waiter.status, waiter.code, waiter.value("preference-applied")) == (409, "in-flight", "wait=1")


async def test_wait_is_for_the_routes_that_have_it(door: MakeDoor) -> None:
    there = door(app := Answering(201, held=True), routes=[Route(path="/payments", wait=20)])
    async with there.in_flight(app), there.in_flight(app, path="/orders", key="k-2"):
        waiter = there.begin()
        assert (await there.send(path="/orders", key="k-2")).code == "in-flight"
        assert not waiter.task.done()
    assert (await waiter.answered()).replayed


def test_a_wait_above_max_wait_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"wait: 31 is above max_wait \(30\)"):
        IdempotencySettings(wait=31)
    with pytest.raises(ValidationError, match=r"wait: 5 is above max_wait \(4\)"):
        Route(path="/x", max_wait=4).settings(IdempotencySettings(wait=5))
