"""Leases of real processes: renewed while an attempt runs, lapsed when its gateway is dead or stalled, never stolen.

Rules of docs/contract.md: R1.5, R1.6, R1.7, R2.17, R5.1, R5.21, R5.23, R5.24.
"""

import asyncio
import socket
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from testing.caller import Caller, fresh_key, is_replay, slug, until_answer
from testing.gateway import DEADLINE, Gateway
from testing.ledger import Ledger, Reply
from testing.waiting import until
from tests.system.conftest import Shared, Start
from tests.system.records import is_in_flight, only

LEASE = 5.0
"""Renewed at every third: a machine that stands still for three seconds does not let one lapse."""
PENDING = ("in-flight", "cache-unavailable")
"""What is told of an attempt under way; the second where Redis took too long for once."""
RETRY = "/retry-unknown/payments"


def pair(start: Start, shared: Shared, *upstreams: str, **settings: Any) -> tuple[str, list[Gateway]]:
    """A namespace and a gateway on it for each upstream."""
    namespace = f"leases-{uuid4().hex}"
    settings = {"cache_timeout": 1.6, "idempotency": {"lease": LEASE}} | settings
    routes = [{"path": "/retry-unknown/*", "on_unknown": "retry"}]
    gateways = [start(upstream, shared.url, namespace=namespace, routes=routes, **settings) for upstream in upstreams]
    return namespace, [gateway.ready() for gateway in gateways]


async def test_a_request_longer_than_its_lease_stays_in_flight_and_is_recorded(
    start: Start, ledger: Ledger, shared: Shared, caller: Caller
) -> None:
    _, (one, other) = pair(start, shared, ledger.url, ledger.url)
    key = fresh_key()
    async with caller.held(ledger, one, key, RETRY) as (first, gate):
        over = time.monotonic() + 1.5 * LEASE
        while time.monotonic() < over:
            assert slug(await caller.post(other, key, RETRY)) in PENDING
            await asyncio.sleep(0.2)
        gate.open()
        answer = await first
    assert answer.status_code == 201
    await caller.meets_replay(other, key, RETRY, of=answer)
    assert ledger.attempts(key) == ["1"]


@pytest.mark.parametrize("path", ["/payments", RETRY])
async def test_the_attempt_of_a_killed_gateway_is_in_flight_until_its_lease_lapses_then_unknown(
    start: Start, ledger: Ledger, shared: Shared, caller: Caller, path: str
) -> None:
    namespace, (doomed, survivor) = pair(start, shared, ledger.url, ledger.url)
    key = fresh_key()
    async with caller.held(ledger, doomed, key, path, then=Reply(201)) as (first, _):
        doomed.kill()
        with pytest.raises(httpx.TransportError):
            await first
        met_in_flight = False
        while True:
            answer = await caller.post(survivor, key, path)
            found = only(shared.url, namespace)
            if slug(answer) not in PENDING:
                break
            met_in_flight |= slug(answer) == "in-flight"
            await asyncio.sleep(0.1)
        assert met_in_flight
        if path == RETRY:
            assert answer.status_code == 201
            assert not is_replay(answer)
            assert ledger.attempts(key) == ["1", "2"]
            assert is_replay(await caller.settled(survivor, key, path))
        else:
            assert slug(answer) == "outcome-unknown"
            assert found.record.lapsed  # the record's own lease was over when it was called unknown, not before
            assert ledger.attempts(key) == ["1"]


async def test_of_those_who_wait_for_a_gateway_that_is_killed_one_makes_the_next_attempt(
    start: Start, ledger: Ledger, shared: Shared, caller: Caller
) -> None:
    _, (doomed, *survivors) = pair(start, shared, ledger.url, ledger.url, ledger.url)
    key = fresh_key()
    async with caller.held(ledger, doomed, key, RETRY, then=Reply(201)) as (first, _):
        waiting = [caller.send(survivors[number % 2], key, RETRY, wait=30) for number in range(20)]
        doomed.kill()
        with pytest.raises(httpx.TransportError):
            await first
        answers = await asyncio.gather(*waiting)
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.content for answer in answers}) == 1
    assert len([answer for answer in answers if not is_replay(answer)]) == 1
    assert ledger.attempts(key) == ["1", "2"]


async def test_a_gateway_that_stalls_past_its_lease_does_not_overwrite_its_successors_result(
    start: Start, ledger: Ledger, shared: Shared, caller: Caller
) -> None:
    _, (stalled, successor) = pair(start, shared, ledger.url, ledger.url)
    key = fresh_key()
    async with caller.held(ledger, stalled, key, RETRY, then=Reply(201)) as (first, gate):
        stalled.stall()
        await until_answer(lambda: caller.post(successor, key, RETRY), "in-flight")
        second = await caller.settled(successor, key, RETRY)
        assert (second.status_code, is_replay(second)) == (201, False)
        assert ledger.attempts(key) == ["1", "2"]
        gate.open()
        stalled.resume()
        late = await first
    assert late.status_code == 201
    assert not is_replay(late)
    assert late.content != second.content  # it did execute, and its client is told what came of it
    for gateway in (stalled, successor):
        await caller.meets_replay(gateway, key, RETRY, of=second)
    assert len(ledger.arrivals(key)) == 2


async def test_a_stalled_gateway_whose_successor_is_still_executing_does_not_complete_in_its_place(
    start: Start, ledger: Ledger, shared: Shared, caller: Caller
) -> None:
    _, (stalled, successor) = pair(start, shared, ledger.url, ledger.url)
    key = fresh_key()
    with ledger.gate() as first_gate, ledger.gate() as second_gate:
        ledger.answer(key, Reply(gate=first_gate), Reply(gate=second_gate))
        first = caller.send(stalled, key, RETRY)
        await until(lambda: ledger.arrivals(key), "the request arrives")
        stalled.stall()
        attempts: list[asyncio.Task[httpx.Response]] = []
        over = time.monotonic() + DEADLINE
        while len(ledger.arrivals(key)) < 2:  # asks again until the lease has lapsed
            assert time.monotonic() < over
            attempts.append(caller.send(successor, key, RETRY))
            await asyncio.sleep(0.1)
        first_gate.open()
        stalled.resume()
        late = await first
        assert late.status_code == 201
        await until_answer(lambda: caller.post(successor, key, RETRY), "in-flight")
        second_gate.open()
        await asyncio.wait(attempts)
    again = await caller.settled(stalled, key, RETRY)
    assert is_replay(again)
    assert again.content != late.content
    assert ledger.attempts(key) == ["1", "2"]


SYN_SENT = "02"


class Door:
    """An upstream that can't be connected to until it is opened: its queue of connections is full."""

    def __init__(self) -> None:
        self._listening = socket.socket()
        self._listening.bind(("127.0.0.1", 0))
        self._listening.listen(0)
        self._listening.settimeout(DEADLINE)
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._filler = socket.create_connection(self._listening.getsockname(), DEADLINE)

    def is_approached(self) -> bool:
        """Whether somebody is connecting: by the kernel's table, since nobody else knows of it yet."""
        there = f":{self._listening.getsockname()[1]:04X}"
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return any(remote.endswith(there) and state == SYN_SENT for _, _, remote, state, *_ in rows)

    def open(self) -> socket.socket:
        """Makes room, and returns the connection that has waited at the door."""
        self._listening.accept()[0].close()
        connection: socket.socket = self._listening.accept()[0]
        return connection

    def __enter__(self) -> "Door":
        return self

    def __exit__(self, *exc: object) -> None:
        self._filler.close()
        self._listening.close()


async def test_a_gateway_that_stalls_between_claim_and_first_byte_sends_nothing_beside_its_successor(
    start: Start, ledger: Ledger, shared: Shared, caller: Caller
) -> None:
    key = fresh_key()
    with Door() as door:
        namespace, (stalled, successor) = pair(
            start, shared, door.url, ledger.url, idempotency={"lease": 3}, cache_timeout=1
        )
        first = caller.send(stalled, key, RETRY)
        await until(lambda: is_in_flight(shared.url, namespace), "the claim is made")
        await until(door.is_approached, "the upstream is being connected to")
        stalled.stall()
        second = await caller.settled(successor, key, RETRY)
        assert second.status_code == 201
        with door.open() as connection:  # the kernel has connected; the gateway knows nothing of it yet
            stalled.resume()
            late = await first
            connection.settimeout(DEADLINE)
            sent = b""
            if slug(late) != "upstream-unreachable":  # as a rule: it connected in time, and noticed that it was late
                assert is_replay(late)
                assert late.content == second.content
            stalled.terminate()
            while data := connection.recv(65536):
                sent += data
    assert sent == b""
    await caller.meets_replay(successor, key, RETRY, of=second)
    assert ledger.attempts(key) == ["2"]


@pytest.mark.parametrize(("ttl", "other_ttl"), [(600.0, 86400.0), (86400.0, 2.0)])
async def test_a_gateway_with_a_short_lease_does_not_steal_the_live_claim_of_one_with_a_long_lease(
    start: Start, ledger: Ledger, shared: Shared, caller: Caller, ttl: float, other_ttl: float
) -> None:
    namespace = f"leases-{uuid4().hex}"
    # Neither's own lease and retention say anything about the other's records.
    long = {"lease": 60, "ttl": ttl, "on_unknown": "retry"}
    short = {"lease": 3, "ttl": other_ttl, "on_unknown": "retry"}
    gateways = [
        start(ledger.url, shared.url, namespace=namespace, cache_timeout=1, idempotency=rules)
        for rules in (long, short)
    ]
    owner, thief = [gateway.ready() for gateway in gateways]
    key = fresh_key()
    async with caller.held(ledger, owner, key, then=Reply(500)) as (first, gate):
        over = time.monotonic() + 4
        while time.monotonic() < over:
            assert slug(await caller.post(thief, key)) in PENDING
            await asyncio.sleep(0.2)
        gate.open()
        answer = await first
    await caller.meets_replay(thief, key, of=answer)
    assert ledger.attempts(key) == ["1"]
    assert (
        60_000 < only(shared.url, namespace).remaining_ms <= ttl * 1000
    )  # kept for as long as the gateway that executed it said, not the one that asked
