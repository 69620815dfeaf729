"""The lifespan's shutdown waits for attempts before the app sees it.

Rules of docs/contract.md: R12.9.
"""

import asyncio
from typing import Any

from oncegate.cache.record import State
from tests.middleware.conftest import MakeDoor
from tests.middleware.door import PATIENCE, Answering, Door


class Lifespan:
    """A server's side of the lifespan protocol."""

    def __init__(self, there: Door) -> None:
        self._messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.sent: list[str] = []
        self.task = asyncio.create_task(
            there.middleware({"type": "lifespan", "asgi": {"version": "3.0"}}, self._messages.get, self._send)
        )

    async def _send(self, message: Any) -> None:
        self.sent.append(message["type"])

    def deliver(self, kind: str) -> None:
        self._messages.put_nowait({"type": f"lifespan.{kind}"})

    async def ended(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self.task


class Living(Answering):
    """An app with a lifespan: it tells when it was told to stop, and how many attempts had ended by then."""

    there: Door
    stopped_with: State | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await super().__call__(scope, receive, send)
            return
        while True:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                self.stopped_with = await self.there.state()
                await send({"type": "lifespan.shutdown.complete"})
                return
            await send({"type": "lifespan.startup.complete"})


async def test_shutdown_waits_for_attempts_before_the_app_sees_it(door: MakeDoor) -> None:
    app = Living(201, held=True)
    there = app.there = door(app)
    lifespan = Lifespan(there)
    lifespan.deliver("startup")
    call = there.begin()
    await app.arrivals()
    await call.gone()
    lifespan.deliver("shutdown")
    assert await there.state() is State.IN_FLIGHT
    assert app.stopped_with is None
    app.release()
    await lifespan.ended()
    assert app.stopped_with is State.SUCCEEDED, "recorded before the app may close what it needs"
    assert lifespan.sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


async def test_shutdown_waits_no_longer_than_drain_timeout(door: MakeDoor) -> None:
    app = Living(201, held=True)
    there = app.there = door(app, drain_timeout=0.05)
    lifespan = Lifespan(there)
    call = there.begin()
    await app.arrivals()
    lifespan.deliver("shutdown")
    await lifespan.ended()
    assert app.stopped_with is State.IN_FLIGHT
    app.release()
    assert (await call.answered()).status == 201


async def test_attempt_that_the_end_of_the_process_cancels_is_left_to_lapse(door: MakeDoor) -> None:
    """Nobody knows what it did: its record must read unknown, and not before its lease has run out."""
    there = door(app := Answering(201, held=True), lease=0.3, ttl=60)
    call = there.begin()
    await app.arrivals()
    assert await there.middleware.drain(0) == 1
    tasks = [attempt.lease.task for attempt in there.middleware.admissions.in_flight._attempts.values()]
    for task in tasks:
        assert task is not None
        task.cancel()
    await asyncio.wait([call.task])
    record = await there.record()
    assert record.state is State.IN_FLIGHT or record.lapsed
    await there.becomes(State.UNKNOWN)
    assert there.slots == 0


async def test_attempt_timeout_while_draining_is_recorded_as_unknown(door: MakeDoor) -> None:
    there = door(app := Answering(201, held=True), attempt_timeout=0.1, lease=1000)
    call = there.begin()
    await app.arrivals()
    assert await there.middleware.drain(PATIENCE) == 0
    await call.answered()
    record = await there.record()
    assert (record.state, record.lapsed) == (State.UNKNOWN, False)


async def test_app_that_starts_again_after_a_shutdown_records_what_runs_out_of_time(door: MakeDoor) -> None:
    """A test client begins and ends a lifespan per block, on one and the same middleware."""
    app = Living(201, held=True)
    there = app.there = door(app, attempt_timeout=0.05, lease=1000)
    for _ in range(2):
        lifespan = Lifespan(there)
        lifespan.deliver("startup")
        lifespan.deliver("shutdown")
        await lifespan.ended()
    lifespan = Lifespan(there)
    lifespan.deliver("startup")
    assert (await there.send()).code == "upstream-failed"
    assert await there.state() is State.UNKNOWN
    lifespan.deliver("shutdown")
    await lifespan.ended()
