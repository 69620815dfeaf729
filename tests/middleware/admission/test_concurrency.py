"""Many duplicates at once, over several instances on one cache: the exact number of executions allowed.

Rules of docs/contract.md: R1.1.
"""

import asyncio
import random
from typing import Any

import pytest

from oncegate.cache.record import State
from tests.middleware.conftest import MakeDoor
from tests.middleware.door import PATIENCE, Answering


async def test_of_many_duplicates_at_once_one_is_executed(door: MakeDoor) -> None:
    app = Answering(201, held=True)
    doors = [door(app) for _ in range(3)]
    calls = [doors[at % 3].begin() for at in range(30)]
    await asyncio.wait([call.task for call in calls], return_when=asyncio.FIRST_COMPLETED)
    app.release()
    for call in calls:
        await call.answered()
    statuses = [call.status for call in calls]
    assert statuses.count(201) >= 1
    assert {call.code for call in calls if call.status != 201} <= {"in-flight"}
    assert sum(call.status == 201 and not call.replayed for call in calls) == 1
    assert app.calls == 1


async def test_of_many_that_wait_all_get_the_one_result(door: MakeDoor) -> None:
    app = Answering(201, held=True)
    doors = [door(app) for _ in range(3)]
    calls = [doors[at % 3].begin(headers=[("prefer", "wait=30")]) for at in range(30)]
    await app.arrivals()
    app.release()
    for call in calls:
        await call.answered()
    assert {(call.status, call.body) for call in calls} == {(201, b"answer 1")}
    assert sum(not call.replayed for call in calls) == 1
    assert app.calls == 1


class Overlapping:
    """An app that is never to run twice at a time; it releases, fails and succeeds in a random order."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._running = 0
        self.statuses: list[int] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert not self._running, "two attempts at a time"
        assert 201 not in self.statuses, "an attempt after a success"
        self._running += 1
        for _ in range(self._dice.randrange(4)):
            await asyncio.sleep(0)
        self._running -= 1
        status = self._dice.choice([429, 429, 500, 201])
        self.statuses.append(status)
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"%d" % len(self.statuses)})


@pytest.mark.parametrize("seed", range(10))
async def test_clients_that_come_wait_and_leave_at_random_cause_one_attempt_at_a_time(
    door: MakeDoor, seed: int
) -> None:
    dice = random.Random(seed)
    app = Overlapping(dice)
    doors = [door(app) for _ in range(2)]
    calls = []
    for _ in range(40):
        headers = [("prefer", "wait=30")] if dice.random() < 0.7 else []
        calls.append(dice.choice(doors).begin(headers=headers))
        for _ in range(dice.randrange(3)):
            await asyncio.sleep(0)
        if dice.random() < 0.3:
            dice.choice(calls).task.cancel()
    _, waiting = await asyncio.wait([call.task for call in calls], timeout=PATIENCE)
    assert not waiting, "a waiter that nobody woke"
    for call in calls:
        if not call.task.cancelled():
            call.task.result()
            assert call.done
    for there in doors:
        assert await there.middleware.drain(PATIENCE) == 0
    final = await doors[0].state()
    assert final is not State.IN_FLIGHT
    if 201 in app.statuses:
        assert final is State.SUCCEEDED
        winner = b"%d" % (app.statuses.index(201) + 1)
        assert all(call.body == winner for call in calls if call.done and call.status == 201)
