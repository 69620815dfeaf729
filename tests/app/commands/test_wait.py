"""Waiting for a command's end: Prefer: wait on its status.

Rules of docs/contract.md: R8.12.
"""

import asyncio
from typing import Any

import pytest

from oncegate.app.operators.pages.for_callers import commands
from testing.servers import RedisServer
from testing.upstreams import reset
from testing.waiting import until
from tests.app.submitted import ALICE, Submitted, serving


async def test_a_caller_can_wait_for_the_end(submitted: Submitted) -> None:
    answer = await submitted.submit()
    location = answer.headers["location"]
    begun = await submitted.consumer.begin(await submitted.delivery(answer.json()["command"]))
    waiting = [
        asyncio.create_task(submitted.client.get(location, headers=ALICE | {"prefer": "wait=600"})) for _ in range(3)
    ]
    await _polls(submitted, 3)
    await begun.execution.succeed(b"1")
    for each in asyncio.as_completed(waiting):
        response = await each
        assert response.json()["status"] == "succeeded"
        assert response.headers["preference-applied"] == "wait=30", "capped by max_wait"


async def _polls(submitted: Submitted, waiters: int = 1) -> None:
    """Until so many wait."""
    operations: Any = submitted.gateway.operations

    async def waits() -> bool:
        return operations.app is not None and bool(operations.app.state.statuses.waiters == waiters)

    await until(waits)


async def test_a_failure_that_will_be_tried_again_is_no_end_and_a_dead_letter_is(submitted: Submitted) -> None:
    answer = await submitted.submit()
    location = answer.headers["location"]
    delivery = await submitted.delivery(answer.json()["command"])
    begun = await submitted.consumer.begin(delivery)
    await begun.execution.fail("once")
    waiting = asyncio.create_task(submitted.client.get(location, headers=ALICE | {"prefer": "wait=20"}))
    await _polls(submitted)
    begun = await submitted.consumer.begin(delivery)
    await begun.execution.fail("for good", final=True)
    body = (await waiting).json()
    assert (body["status"], body["error"]["message"]) == ("dead-lettered", "for good")


async def test_who_waits_in_vain_is_told_how_it_stands(submitted: Submitted) -> None:
    answer = await submitted.submit()
    response = await submitted.client.get(answer.headers["location"], headers=ALICE | {"prefer": "wait=1"})
    assert (response.json()["status"], response.headers["preference-applied"]) == ("accepted", "wait=1")


async def test_what_is_over_is_told_at_once(submitted: Submitted) -> None:
    answer = await submitted.submit()
    begun = await submitted.consumer.begin(await submitted.delivery(answer.json()["command"]))
    await begun.execution.succeed(b"1")
    response = await submitted.client.get(answer.headers["location"], headers=ALICE | {"prefer": "wait=30"})
    assert response.json()["status"] == "succeeded"
    assert "preference-applied" not in response.headers, "no wait took place"


async def test_only_so_many_wait_at_once(submitted: Submitted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "MAX_WAITERS", 0)
    answer = await submitted.submit()
    response = await submitted.client.get(answer.headers["location"], headers=ALICE | {"prefer": "wait=30"})
    assert (response.json()["status"], "preference-applied" in response.headers) == ("accepted", False)


async def test_nobody_waits_for_a_client_that_has_left_or_in_a_gateway_that_stops(redis_server: RedisServer) -> None:
    async with serving(redis_server, idempotency={"max_wait": 600}) as there:
        location = (await there.submit()).headers["location"]
        headers = ALICE | {"prefer": "wait=600"}
        _, leaves = await asyncio.open_connection(there.client.base_url.host, there.client.base_url.port)
        lines = [f"GET {location} HTTP/1.1", "host: a", *(f"{name}: {value}" for name, value in headers.items())]
        leaves.write("\r\n".join([*lines, "", ""]).encode())
        await _polls(there)
        reset(leaves)  # one who only says no more may still be there
        await _polls(there, 0)
        stays = asyncio.create_task(there.client.get(location, headers=headers))
        await _polls(there)
        there.gateway.lasting.readiness.draining = True
        assert (await stays).json()["status"] == "accepted"
