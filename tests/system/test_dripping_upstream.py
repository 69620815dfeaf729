"""An upstream whose answer never ends: the time limits are for the whole of what they bound, wherever it drips.

Rules of docs/contract.md: R4.23, R4.26.
"""

import asyncio

import httpx
import pytest

from testing.caller import Caller, fresh_key, slug
from testing.dripping import DRIPS, dripping
from tests.system.conftest import Start

IN_THE_HEAD = ("head", "status", "interim answers")


@pytest.mark.parametrize("where", DRIPS)
async def test_an_attempt_ends_in_its_time_and_its_outcome_is_unknown(start: Start, caller: Caller, where: str) -> None:
    with dripping(*DRIPS[where]) as url:
        gateway = await asyncio.to_thread(
            start(url, idempotency={"response_timeout": 0.5, "attempt_timeout": 1.0}).ready
        )
        key = fresh_key()
        try:
            answer = await caller.post(gateway, key)
        except httpx.TransportError:  # it had begun
            assert where not in IN_THE_HEAD
        else:
            assert answer.status_code in (502, 504)
        assert slug(await caller.settled(gateway, key)) == "outcome-unknown"


@pytest.mark.parametrize("where", IN_THE_HEAD)
async def test_what_passes_gets_a_head_in_time_or_none(start: Start, caller: Caller, where: str) -> None:
    with dripping(*DRIPS[where]) as url:
        gateway = await asyncio.to_thread(start(url, idempotency={"response_timeout": 0.5}).ready)
        assert (await caller.get(gateway)).status_code in (502, 504)
