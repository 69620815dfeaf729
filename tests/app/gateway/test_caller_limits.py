"""A caller that takes all that it can get leaves the others alone, on the gateway's fast path too.

Rules of docs/contract.md: R4.34.
"""

import asyncio

from testing.inside import middleware_of
from testing.upstreams import Peer, Upstream
from testing.waiting import until
from tests.app.fast_path import CREATED, Talk, gateway_at, keyed, talking

STORM = 1020
MOST = 20


async def test_a_thousand_aborted_slow_requests_of_one_caller_leave_the_others_alone() -> None:
    go = asyncio.Event()

    async def slow(peer: Peer) -> None:
        while request := await peer.request():
            if " /slow " in request.line:
                await go.wait()
            await peer.send(CREATED)

    async with (
        Upstream(slow) as upstream,
        gateway_at(upstream.url, max_in_flight=100, max_in_flight_per_caller=MOST) as (honest, gateway, port),
    ):
        refused = 0

        async def abuse(number: int) -> None:
            nonlocal refused
            async with talking(port) as talk:
                talk.writer.write(keyed(f"slow-{number}", path="/slow", authorization="Bearer mallory"))
                if number >= MOST:
                    answer = await talk.answer()
                    assert answer.startswith(b"HTTP/1.1 429 "), answer
                    assert b'"too-many-keys"' in answer
                    refused += 1
                else:
                    await until(lambda: upstream.arrivals > number, "it runs")

        for number in range(MOST):
            await abuse(number)  # and leaves
        for start in range(MOST, STORM, 50):
            await asyncio.gather(*[abuse(number) for number in range(start, start + 50)])
            assert b"HTTP/1.1 201 " in await honest.exchange(keyed(authorization="Bearer alice"))
        assert refused == STORM - MOST
        slots = middleware_of(gateway).admissions.in_flight.slots
        assert slots.taken == MOST
        go.set()
        await until(lambda: not slots.taken, "all have ended")
        assert await replayed(honest, "slow-0")
        assert b"HTTP/1.1 201 " in await honest.exchange(keyed(authorization="Bearer mallory"))


async def replayed(talk: Talk, key: str) -> bool:
    answer = await talk.exchange(keyed(key, path="/slow", authorization="Bearer mallory"))
    return b"idempotent-replayed: true" in answer
