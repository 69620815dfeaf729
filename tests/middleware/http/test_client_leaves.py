"""An attempt that has begun is finished and recorded, whatever becomes of its client.

Rules of docs/contract.md: R1.4, R3.16, R3.17.
"""

import asyncio
from typing import Any

import pytest

from oncegate.cache.record import State
from oncegate.middleware.http.capture import WINDOW
from testing.waiting import until
from tests.middleware.conftest import MakeDoor
from tests.middleware.door import PATIENCE, Answering


@pytest.mark.parametrize(("status", "state"), [(201, State.SUCCEEDED), (500, State.FAILED), (429, State.ABSENT)])
async def test_cancelled_request_s_attempt_is_finished_and_recorded(door: MakeDoor, status: int, state: State) -> None:
    there = door(app := Answering(status, held=True))
    call = there.begin()
    await app.arrivals()
    await call.gone()
    assert await there.state() is State.IN_FLIGHT
    assert (await there.send()).code == "in-flight"
    app.release()
    await there.becomes(state)
    assert app.calls == 1
    assert call.messages == []


async def test_retry_of_a_client_that_left_gets_the_result(door: MakeDoor) -> None:
    there = door(app := Answering(201, held=True))
    call = there.begin()
    await app.arrivals()
    await call.gone()
    retry = there.begin(headers=[("prefer", "wait=30")])
    app.release()
    assert (await retry.answered()).body == b"answer 1"
    assert retry.replayed
    assert app.calls == 1


async def test_request_cancelled_at_any_point_leaves_no_claim_without_an_owner(door: MakeDoor) -> None:
    """Whichever await the cancellation meets: the key is free again, or its attempt has run to its end."""
    there = door(app := Answering(201))
    for steps in range(25):
        key = f"k-{steps}"
        call = there.begin(key=key)
        for _ in range(steps):
            await asyncio.sleep(0)
        call.task.cancel()
        await asyncio.wait([call.task])
        assert await there.middleware.drain(PATIENCE) == 0
        there.middleware.admissions.in_flight.closing = False
        assert there.slots == 0
        assert await there.state(key) in (State.ABSENT, State.SUCCEEDED)
        retry = await there.send(key=key)
        assert retry.status == 201
        assert retry.body in app.given(), "one attempt's answer"
    assert app.calls == 25, "each key's command ran once"


async def test_exception_of_an_app_whose_client_left_is_logged(
    door: MakeDoor, caplog: pytest.LogCaptureFixture
) -> None:
    there = door(app := Answering(ValueError("broken"), held=True))
    call = there.begin()
    await app.arrivals()
    await call.gone()
    app.release()
    await there.becomes(State.FAILED)
    assert "broken" in caplog.text


async def test_send_that_fails_is_a_client_that_left(door: MakeDoor) -> None:
    """Servers differ: some raise when they are sent something for a client that is gone."""
    there = door(app := Answering(201))
    scope = (await there.send()).scope

    async def broken(message: Any) -> None:
        raise OSError("the connection is closed")

    await there.middleware({**scope, "headers": [(b"idempotency-key", b"k-2")]}, piece, broken)
    assert await there.state("k-2") is State.SUCCEEDED
    await there.middleware(scope, piece, broken)
    assert app.calls == 2


async def piece() -> dict[str, Any]:
    return {"type": "http.request", "body": b"{}", "more_body": False}


class Producing:
    """An app that sends chunks, each when `more` is called, and counts those that it got rid of."""

    def __init__(self) -> None:
        self._chunks: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.sent = 0
        self.ended = asyncio.Event()

    def more(self, *chunks: bytes | None) -> None:
        for chunk in chunks:
            self._chunks.put_nowait(chunk)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while (chunk := await self._chunks.get()) is not None:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            self.sent += 1
        await send({"type": "http.response.body", "body": b""})
        self.ended.set()


async def test_response_is_streamed_to_its_client_as_it_comes(door: MakeDoor) -> None:
    there = door(app := Producing())
    call = there.begin()
    await call.started.wait()
    for at in range(3):
        app.more(b"%d" % at)
        await until(lambda: call.body == b"012"[: app.sent])
        assert not call.done
    assert await there.state() is State.IN_FLIGHT
    app.more(None)
    await call.answered()
    assert (await there.send()).body == b"012"


async def test_client_that_stalls_within_the_cap_does_not_delay_the_record(door: MakeDoor) -> None:
    there = door(app := Producing(), max_result=10 * WINDOW)
    call = there.begin()
    await call.started.wait()
    call.reads.clear()
    app.more(*[b"x" * WINDOW] * 9, None)
    await there.becomes(State.SUCCEEDED)
    assert (await there.send()).body == b"x" * WINDOW * 9
    assert not call.done
    call.reads.set()
    assert len((await call.answered()).body) == WINDOW * 9


async def test_client_past_the_cap_sets_the_pace(door: MakeDoor) -> None:
    there = door(app := Producing(), max_result=1000)
    call = there.begin()
    await call.started.wait()
    call.reads.clear()
    app.more(*[b"x" * 1000] * 500, None)
    await until(lambda: app.sent * 1000 >= WINDOW - 2000)
    for _ in range(50):
        await asyncio.sleep(0.001)
    assert app.sent * 1000 <= 2 * WINDOW + 2000, "a window of it is in memory, and one piece on its way"
    call.reads.set()
    assert len((await call.answered()).body) == 500_000
    assert (await there.send()).code == "duplicate"


async def test_client_that_stalls_past_the_cap_is_dropped_and_the_attempt_completes(door: MakeDoor) -> None:
    there = door(app := Producing(), max_result=1000, body_timeout=0.1)
    call = there.begin()
    await call.started.wait()
    call.reads.clear()
    app.more(*[b"x" * 1000] * 500, None)
    await call.answered()
    assert not call.done, "without an end: the server closes the connection"
    await there.becomes(State.SUCCEEDED)
    assert app.sent == 500


async def test_client_that_stalls_before_a_small_last_piece_is_dropped(door: MakeDoor) -> None:
    there = door(app := Producing(), body_timeout=0.1)
    call = there.begin()
    await call.started.wait()
    app.more(b"first")
    await until(lambda: call.body == b"first")
    call.reads.clear()
    app.more(b"last", None)
    await call.answered()
    assert (call.body, call.done) == (b"first", False)
    assert (await there.send()).body == b"firstlast"


async def test_client_that_leaves_past_the_cap_lets_the_attempt_run_free(door: MakeDoor) -> None:
    there = door(app := Producing(), max_result=1000)
    call = there.begin()
    await call.started.wait()
    call.reads.clear()
    app.more(*[b"x" * 1000] * 500)
    await until(lambda: app.sent * 1000 >= WINDOW - 2000)
    await call.gone()
    app.more(None)
    await there.becomes(State.SUCCEEDED)
    assert app.sent == 500
