"""What ``receive()`` answers behind the body, and what an app does behind the end of its response (ASGI 3, HTTP).

Rules of docs/contract.md: R12.2.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from litestar import Litestar, post
from litestar.response import Stream
from starlette.background import BackgroundTask
from starlette.responses import StreamingResponse

from oncegate.cache.record import State
from testing.waiting import until
from tests.middleware.conftest import MakeDoor
from tests.middleware.door import PATIENCE


class Listening:
    """An app whose tasks wait for the end of the connection, as those of streams do; it returns when they have ended."""

    def __init__(self, *, breaks: bool = False) -> None:
        self.go = asyncio.Event()
        self.received: list[str] = []
        self.ended = asyncio.Event()
        self._breaks = breaks

    async def _listen(self, receive: Any) -> None:
        self.received.append((await receive())["type"])

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "http.request"
        listening = [asyncio.create_task(self._listen(receive)) for _ in range(2)]
        listening.append(cancelled := asyncio.create_task(receive()))
        await asyncio.sleep(0)
        cancelled.cancel()  # as who asks whether the client is still there
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        await self.go.wait()
        if not self._breaks:
            assert not self.received
            await send({"type": "http.response.body", "body": b"two"})
            assert (await receive())["type"] == "http.disconnect"
            await asyncio.gather(*listening, return_exceptions=True)
        self.ended.set()


async def test_disconnect_comes_after_the_response_and_not_before(door: MakeDoor) -> None:
    there = door(app := Listening())
    call = there.begin()
    await call.started.wait()
    call.left.set()
    await call.gone()
    for _ in range(10):
        await asyncio.sleep(0)
    assert app.received == [], "a client that leaves ends no attempt"
    app.go.set()
    await asyncio.wait_for(app.ended.wait(), PATIENCE)
    assert app.received == ["http.disconnect"] * 2
    assert await there.middleware.drain(PATIENCE) == 0
    assert await there.state() is State.SUCCEEDED


async def test_disconnect_comes_where_the_app_ended_without_a_whole_response(door: MakeDoor) -> None:
    there = door(app := Listening(breaks=True))
    call = there.begin()
    await call.started.wait()
    app.go.set()
    with pytest.raises(RuntimeError, match="without a complete response"):
        await call.answered()
    await until(lambda: app.received == ["http.disconnect"] * 2)


async def chunks() -> AsyncIterator[bytes]:
    yield b"one"
    yield b"two"


async def test_streams_of_litestar_end_and_leave_no_slot_taken(door: MakeDoor) -> None:
    @post("/payments")
    async def pay() -> Stream:
        return Stream(chunks())

    there = door(Litestar([pay]), max_in_flight=1)
    for key in ("k-1", "k-2", "k-3"):
        assert (await there.send(key=key)).body == b"onetwo"
        assert (await there.send(key=key)).replayed
    assert there.slots == 0


async def test_stream_of_starlette_ends_under_servers_that_do_not_raise_on_send(door: MakeDoor) -> None:
    """Below version 2.4 of the specification, Starlette listens beside its stream, too."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await StreamingResponse(chunks())(scope, receive, send)

    there = door(app)
    assert (await there.send(asgi={"version": "3.0", "spec_version": "2.3"})).body == b"onetwo"
    assert (await there.send()).replayed


async def test_background_task_takes_no_slot_and_is_waited_for_by_its_request_alone(door: MakeDoor) -> None:
    """As without the middleware: the request's coroutine lasts as long as the task, and a server waits for it."""
    go, done = asyncio.Event(), asyncio.Event()

    async def later() -> None:
        await go.wait()
        done.set()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await StreamingResponse(chunks(), background=BackgroundTask(later))(scope, receive, send)

    there = door(app, max_in_flight=1)
    calls = []
    for key in ("k-1", "k-2"):
        calls.append(call := there.begin(key=key))
        await until(lambda: call.done)
        assert (await there.send(key=key)).replayed
    await until(lambda: there.slots == 0)
    assert await there.middleware.drain(PATIENCE) == 0
    assert not done.is_set()
    assert not any(call.task.done() for call in calls)
    go.set()
    for call in calls:
        await call.answered()
    assert done.is_set()
    assert there.slots == 0


async def test_error_of_a_background_task_is_raised_and_changes_nothing_else(door: MakeDoor) -> None:
    async def broken() -> None:
        raise ValueError("in the background")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await StreamingResponse(chunks(), background=BackgroundTask(broken))(scope, receive, send)

    there = door(app)
    with pytest.raises(ValueError, match="background"):
        await there.send()
    assert (await there.send()).replayed
