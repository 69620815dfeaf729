"""response_timeout ends the request, attempt_timeout the attempt.

Rules of docs/contract.md: R5.17, R5.18.
"""

import asyncio
from typing import Any

import pytest

from oncegate.cache.record import State
from tests.middleware.conftest import MakeDoor
from tests.middleware.door import Answering


async def test_response_timeout_counts_to_the_head_alone(door: MakeDoor) -> None:
    go = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await go.wait()
        await send({"type": "http.response.body", "body": b"slow"})

    there = door(app, response_timeout=0.5)
    call = there.begin()
    await call.started.wait()
    await asyncio.sleep(0.6)  # past the limit
    go.set()
    assert ((await call.answered()).status, call.body) == (201, b"slow")


async def test_response_timeout_of_an_attempt_that_then_fails(door: MakeDoor, caplog: pytest.LogCaptureFixture) -> None:
    there = door(app := Answering(ValueError("broken"), held=True), response_timeout=0.05, on_error="replay")
    assert (await there.send()).code == "upstream-timeout"
    app.release()
    await there.becomes(State.FAILED)
    assert (await there.send()).replayed
    assert "broken" in caplog.text


async def test_attempt_timeout_makes_the_outcome_unknown(door: MakeDoor) -> None:
    there = door(app := Answering(201, held=True), attempt_timeout=0.05)
    call = await there.send()
    assert (call.status, call.code) == (502, "upstream-failed")
    assert await there.state() is State.UNKNOWN
    assert (await there.send()).code == "outcome-unknown"
    assert app.calls == 1


async def test_attempt_timeout_counts_to_the_last_byte(door: MakeDoor) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        await asyncio.Event().wait()

    there = door(app, attempt_timeout=0.5)
    call = await there.send()
    assert (call.status, call.body, call.done) == (201, b"begun", False)
    assert await there.state() is State.UNKNOWN


async def test_attempt_timeout_outlives_response_timeout(door: MakeDoor) -> None:
    there = door(Answering(201, held=True), response_timeout=0.02, attempt_timeout=3)
    assert (await there.send()).code == "upstream-timeout"
    await there.becomes(State.UNKNOWN)


@pytest.mark.parametrize("swallowed", ["raised as another error", "kept quiet"])
async def test_attempt_timeout_is_unknown_whatever_the_app_makes_of_its_end(door: MakeDoor, swallowed: str) -> None:
    """An app that turns the cancellation into an error of its own knows no better what has been done."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if swallowed == "raised as another error":
                raise ConnectionError("aborted") from None

    there = door(app, attempt_timeout=0.05)
    assert (await there.send()).code == "upstream-failed"
    assert await there.state() is State.UNKNOWN


async def test_attempt_timeout_does_not_undo_a_result_that_came_in_time(door: MakeDoor) -> None:
    """What an app does after its response (background tasks) is not the attempt any more."""
    go = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})
        await go.wait()

    there = door(app, attempt_timeout=2)
    call = there.begin()
    await there.becomes(State.SUCCEEDED)
    await asyncio.sleep(2.5)  # past attempt_timeout, which the answer must have met
    go.set()
    await call.answered()
    assert (await there.send()).replayed
