"""A lease is renewed while its attempt runs, and what was taken over can neither begin nor be recorded.

Rules of docs/contract.md: R4.25, R5.21, R5.22, R5.24.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from oncegate.cache.record import TOKEN_BYTES, State
from oncegate.cache.store import Cache
from oncegate.middleware.http.asgi import SCOPE_EXTENSION, AttemptView
from testing.records import SUCCESSOR, take_over
from tests.middleware.conftest import Elsewhere, MakeDoor
from tests.middleware.door import PATIENCE, Answering, Door


def succeeding(there: Door) -> Callable[[Cache], Coroutine[Any, Any, None]]:
    """Another gateway takes the key over, as soon as its lease has lapsed."""

    return partial(take_over, key=there.look_up_key())


def lapsing(there: Door) -> Callable[[Cache], Coroutine[Any, Any, None]]:
    """Time passes until the key's lease has lapsed."""

    async def lapse(cache: Cache) -> None:
        await Door(Answering(), cache, there.namespace).becomes(State.UNKNOWN)

    return lapse


async def test_request_longer_than_its_lease_keeps_its_lease(door: MakeDoor) -> None:
    there = door(app := Answering(201, held=True), lease=4, ttl=60, on_unknown="retry")
    call = there.begin()
    await app.arrivals()
    renewals = 0
    left = 64_000
    async with asyncio.timeout(2 * PATIENCE):
        while renewals < 4:  # four thirds: more than a lease
            claim = await there.claim()
            if claim.record.state is not State.IN_FLIGHT:
                renewals = 0  # the machine stood still; who renews too late never gets to four in a row
            renewals += claim.remaining_ms > left
            left = claim.remaining_ms
            await asyncio.sleep(0.01)
    assert (await there.send()).code == "in-flight"
    app.release()
    assert (await call.answered()).status == 201
    assert app.calls == 1


class Confirming:
    """An app that confirms its attempt before it does anything; what happens before that is the test's."""

    def __init__(self, before: Callable[[], None]) -> None:
        self.calls = 0
        self.effects = 0
        self._before = before

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.calls += 1
        self._before()
        view = scope["extensions"][SCOPE_EXTENSION]
        assert isinstance(view, AttemptView)
        assert view.confirm
        await view.confirm()
        self.effects += 1
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})


async def test_confirm_of_an_old_claim_renews_it(door: MakeDoor, elsewhere: Elsewhere) -> None:
    app = Confirming(lambda: elsewhere(lapsing(there)))
    there = door(app, lease=0.3, ttl=60)
    assert (await there.send()).status == 201
    assert app.effects == 1
    assert await there.state() is State.SUCCEEDED


async def test_confirm_of_a_lost_claim_stops_the_attempt_and_the_request_is_decided_anew(
    door: MakeDoor, elsewhere: Elsewhere
) -> None:
    app = Confirming(lambda: elsewhere(succeeding(there)))
    there = door(app, lease=0.3, ttl=60)
    answer = await there.send()
    assert answer.code == "in-flight", "its successor is executing"
    assert (app.calls, app.effects) == (1, 0)
    record = await there.record()
    assert (record.token, record.attempt) == (SUCCESSOR, 2)


def passing_by(there: Door) -> Callable[[Cache], Coroutine[Any, Any, None]]:
    """Another gateway takes the key over once its lease has lapsed, and is gone before anybody looks again."""

    async def pass_by(cache: Cache) -> None:
        await take_over(cache, there.look_up_key(), token=os.urandom(TOKEN_BYTES), lease_ms=1)
        await lapsing(there)(cache)

    return pass_by


async def test_a_request_that_is_overtaken_again_and_again_is_refused_and_nothing_runs(
    door: MakeDoor, elsewhere: Elsewhere
) -> None:
    app = Confirming(lambda: elsewhere(passing_by(there)))
    there = door(app, lease=0.3, ttl=60, on_unknown="retry")
    answer = await there.send()
    assert (answer.status, answer.code, answer.problem["retryable"]) == (503, "overloaded", True)
    assert (app.calls, app.effects) == (3, 0)


async def test_confirm_of_a_lost_claim_counts_whatever_the_app_makes_of_it(
    door: MakeDoor, elsewhere: Elsewhere
) -> None:
    """Frameworks answer 500 to every exception of an endpoint: that is no result of an attempt that never began."""
    inner = Confirming(lambda: elsewhere(succeeding(there)))

    async def catching(scope: Any, receive: Any, send: Any) -> None:
        try:
            await inner(scope, receive, send)
        except Exception:
            await send({"type": "http.response.start", "status": 500, "headers": []})
            await send({"type": "http.response.body", "body": b"Internal Server Error"})
            raise

    there = door(catching, lease=0.3, ttl=60)
    assert (await there.send()).code == "in-flight"
    assert (inner.calls, inner.effects) == (1, 0)


async def test_confirm_of_a_lost_claim_is_a_replay_where_the_successor_is_done(
    door: MakeDoor, elsewhere: Elsewhere
) -> None:
    async def succeed(cache: Cache) -> None:
        app = Answering(201, body=b"the successor's")
        other = Door(app, cache, there.namespace, on_unknown="retry", ttl=60)
        await other.becomes(State.UNKNOWN)
        assert (await other.send()).body == b"the successor's"
        assert app.lines("idempotency-attempt") == ["2"]

    app = Confirming(lambda: elsewhere(succeed))
    there = door(app, lease=0.3, ttl=60)
    answer = await there.send()
    assert (answer.status, answer.body, answer.replayed) == (201, b"the successor's", True)
    assert (app.calls, app.effects) == (1, 0)


async def test_late_completion_after_a_takeover_is_refused(
    door: MakeDoor, elsewhere: Elsewhere, caplog: pytest.LogCaptureFixture
) -> None:
    """The command ran, and its client gets its answer; but the record is the successor's by now."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        elsewhere(succeeding(there))
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"late"})

    there = door(app, lease=0.3, ttl=60)
    assert (await there.send()).body == b"late"
    record = await there.record()
    assert (record.state, record.token, record.attempt) == (State.IN_FLIGHT, SUCCESSOR, 2)
    assert "taken over" in caplog.text


@pytest.mark.parametrize("status", [201, 429])
async def test_late_outcome_without_a_takeover_is_recorded(door: MakeDoor, elsewhere: Elsewhere, status: int) -> None:
    """A lapsed lease alone takes nothing from its owner."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        elsewhere(lapsing(there))
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"late"})

    there = door(app, lease=0.1, ttl=60)
    assert (await there.send()).status == status
    assert await there.state() is (State.SUCCEEDED if status == 201 else State.ABSENT)
