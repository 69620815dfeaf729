"""Redis, or a PostgreSQL in its place, stopped, stalled and restarted before, during and after an attempt.

Rules of docs/contract.md: R1.8, R3.6, R3.13, R4.24, R5.26, R5.27, R5.29.
"""

import asyncio
import time
from collections.abc import Iterator
from typing import Protocol

import pytest

from testing.caller import PASSWORD_MARK, Caller, fresh_key, is_replay, slug, until_answer
from testing.gateway import Gateway
from testing.ledger import Ledger, Reply
from testing.postgresql import records_server
from testing.servers import RedisServer
from testing.waiting import until
from tests.system.conftest import UNHURRIED, Start
from tests.system.records import held, is_in_flight

LEASE = 60.0
OPEN = "/open/payments"
FAULTS = ["stopped", "stalled"]


class Faulty(Protocol):
    """A server of records, to be stopped, paused and started again."""

    @property
    def url(self) -> str: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A Redis for faults, which keeps its data over a restart."""
    with RedisServer(persist=True) as server:
        yield server


@pytest.fixture(params=["redis", "postgresql"])
def own_server(request: pytest.FixtureRequest) -> Iterator[Faulty]:
    """The same, once of each kind."""
    if request.param == "redis":
        yield request.getfixturevalue("own_redis")
    else:
        with records_server() as server:
            yield server


def serving(start: Start, ledger: Ledger, url: str) -> Gateway:
    routes = [
        {"path": "/open/*", "on_cache_down": "fail_open"},
        {"path": "/brief/*", "lease": 3.0},
        {"path": "/retry-unknown/*", "on_unknown": "retry"},
    ]
    return start(ledger.url, url, cache_timeout=1, idempotency={"lease": LEASE}, routes=routes).ready()


@pytest.fixture
def gateway(start: Start, ledger: Ledger, own_server: Faulty) -> Gateway:
    return serving(start, ledger, own_server.url)


@pytest.fixture
def redis_gateway(start: Start, ledger: Ledger, own_redis: RedisServer) -> Gateway:
    return serving(start, ledger, own_redis.url)


def inflict(fault: str, server: Faulty) -> None:
    if fault == "stopped":
        server.stop()
    else:
        server.pause()


def heal(fault: str, server: Faulty) -> None:
    if fault == "stopped":
        server.start()
    else:
        server.resume()


@pytest.mark.parametrize("fault", FAULTS)
async def test_without_redis_keyed_requests_get_503_and_what_passes_through_passes(
    gateway: Gateway, own_server: Faulty, ledger: Ledger, caller: Caller, fault: str
) -> None:
    done, refused = fresh_key(), fresh_key()
    first = await caller.post(gateway, done)
    assert first.status_code == 201
    inflict(fault, own_server)
    began = time.monotonic()
    for key in (refused, done, refused):
        answer = await caller.post(gateway, key)
        assert (answer.status_code, slug(answer)) == (503, "cache-unavailable")
        assert answer.json()["retryable"] is True
        assert answer.headers["retry-after"]
    assert time.monotonic() - began < 60  # three time-outs of a second, on a very slow machine
    assert (await caller.get(gateway)).status_code == 201
    assert ledger.arrivals(refused) == []
    heal(fault, own_server)
    answer = await caller.settled(gateway, refused)
    assert (answer.status_code, is_replay(answer)) == (201, False)
    assert ledger.attempts(refused) == ["1"]
    await caller.meets_replay(gateway, done, of=first)
    assert ledger.attempts(done) == ["1"]


async def test_a_claim_that_a_stalled_redis_makes_late_is_withdrawn(
    gateway: Gateway, own_server: Faulty, ledger: Ledger, caller: Caller
) -> None:
    key = fresh_key()
    assert (await caller.post(gateway, fresh_key())).status_code == 201  # there is a connection
    own_server.pause()
    assert slug(await caller.post(gateway, key)) == "cache-unavailable"
    own_server.resume()
    answer = await caller.settled(gateway, key)  # were the claim left alone, it would read unknown in the end
    assert (answer.status_code, is_replay(answer)) == (201, False)
    assert ledger.attempts(key) == ["1"]


async def test_a_claim_on_a_connection_that_was_given_up_is_withdrawn(
    gateway: Gateway, own_server: Faulty, ledger: Ledger, caller: Caller
) -> None:
    key = fresh_key()
    assert (await caller.post(gateway, fresh_key())).status_code == 201
    own_server.pause()
    given_up = time.monotonic() + 6  # time-out and patience together are 3 s
    while time.monotonic() < given_up:
        assert slug(await caller.post(gateway, key)) == "cache-unavailable"
        await asyncio.sleep(0.05)
    own_server.resume()
    answer = await caller.settled(gateway, key)
    assert (answer.status_code, is_replay(answer)) == (201, False)
    assert ledger.attempts(key) == ["1"]


@pytest.mark.parametrize("fault", FAULTS)
async def test_an_outage_at_the_end_of_an_attempt_costs_neither_the_response_nor_the_record(
    gateway: Gateway, own_server: Faulty, ledger: Ledger, caller: Caller, fault: str
) -> None:
    key = fresh_key()
    async with caller.held(ledger, gateway, key, then=Reply(500)) as (task, gate):
        inflict(fault, own_server)
        gate.open()
        answer = await task
    assert answer.status_code == 201
    heal(fault, own_server)
    await caller.meets_replay(gateway, key, of=answer)
    assert ledger.attempts(key) == ["1"]


async def test_an_outage_longer_than_the_lease_does_not_make_a_known_outcome_unknown(
    gateway: Gateway, own_server: Faulty, ledger: Ledger, caller: Caller
) -> None:
    key, path = fresh_key(), "/brief/payments"
    async with caller.held(ledger, gateway, key, path, then=Reply(500)) as (task, gate):
        own_server.stop()
        gate.open()
        answer = await task
    assert answer.status_code == 201
    await asyncio.sleep(3.5)  # the lease, which nothing but time makes lapse
    own_server.start()
    # It reads unknown until the gateway has connected again and told what it knows.
    again = await until_answer(lambda: caller.post(gateway, key, path), 201)
    assert is_replay(again)
    assert again.content == answer.content
    assert ledger.attempts(key) == ["1"]


async def test_a_lease_that_lapsed_in_an_outage_is_taken_up_again_while_the_attempt_runs(
    gateway: Gateway, own_server: Faulty, ledger: Ledger, caller: Caller
) -> None:
    key, path = fresh_key(), "/brief/payments"
    async with caller.held(ledger, gateway, key, path, then=Reply(500)) as (task, gate):
        own_server.stop()
        await asyncio.sleep(3.5)  # the lease
        own_server.start()
        answer = await until_answer(lambda: caller.post(gateway, key, path), "in-flight")
        assert answer.status_code == 409
        gate.open()
        assert (await task).status_code == 201
    assert is_replay(await caller.settled(gateway, key, path))
    assert ledger.attempts(key) == ["1"]


async def test_a_restart_of_redis_during_an_attempt_is_not_noticed(
    gateway: Gateway, own_server: Faulty, ledger: Ledger, caller: Caller
) -> None:
    key = fresh_key()
    async with caller.held(ledger, gateway, key, then=Reply(500)) as (task, gate):
        own_server.stop()
        own_server.start()
        assert slug(await until_answer(lambda: caller.post(gateway, key), 409)) == "in-flight"
        gate.open()
        answer = await task
    assert answer.status_code == 201
    again = await caller.settled(gateway, key)
    assert is_replay(again)
    assert ledger.attempts(key) == ["1"]


async def test_a_redis_that_lost_its_data_is_given_the_outcome_of_an_attempt_in_flight(
    start: Start, ledger: Ledger, caller: Caller
) -> None:
    key = fresh_key()
    with RedisServer() as forgetful, ledger.gate() as gate:
        gateway = start(ledger.url, forgetful.url, cache_timeout=1).ready()
        ledger.answer(key, Reply(gate=gate), Reply(500))
        task = caller.send(gateway, key)
        await until(lambda: ledger.arrivals(key), "the request arrives")
        forgetful.stop()
        forgetful.start()
        gate.open()
        answer = await task
        await until(lambda: held(forgetful.url, "system"), "the outcome is recorded")
        await caller.meets_replay(gateway, key, of=answer)
        assert ledger.attempts(key) == ["1"]


@pytest.mark.parametrize("fault", FAULTS)
async def test_fail_open_forwards_without_a_record_and_says_so(
    gateway: Gateway, own_server: Faulty, ledger: Ledger, caller: Caller, fault: str
) -> None:
    key = fresh_key()
    inflict(fault, own_server)
    answer = await caller.post(gateway, key, OPEN)
    assert answer.status_code == 201
    assert answer.headers["cache-status"] == "oncegate; fwd=bypass"
    assert ledger.attempts(key) == [None]
    heal(fault, own_server)


async def test_under_fail_open_a_claim_that_is_won_late_is_adopted(
    redis_gateway: Gateway, own_redis: RedisServer, ledger: Ledger, caller: Caller
) -> None:
    key = fresh_key()
    assert (await caller.post(redis_gateway, fresh_key())).status_code == 201
    before = held(own_redis.url, "system")
    with ledger.gate() as gate:
        ledger.answer(key, Reply(gate=gate), Reply(500))
        own_redis.pause()
        task = caller.send(redis_gateway, key, OPEN)
        await until(lambda: ledger.arrivals(key), "it is forwarded without a record")
        own_redis.resume()
        await until(lambda: held(own_redis.url, "system").keys() - before.keys(), "the claim is made")
        assert slug(await caller.post(redis_gateway, key, OPEN)) == "in-flight"
        gate.open()
        answer = await task
    assert answer.status_code == 201
    await caller.meets_replay(redis_gateway, key, OPEN, of=answer)
    assert len(ledger.arrivals(key)) == 1


async def test_a_gateway_starts_without_redis_and_enforces_once_it_is_there(
    start: Start, ledger: Ledger, caller: Caller
) -> None:
    key = fresh_key()
    with RedisServer() as server:
        server.stop()
        gateway = start(ledger.url, server.url, cache_timeout=1).ready()
        assert slug(await caller.post(gateway, key)) == "cache-unavailable"
        assert (await caller.get(gateway)).status_code == 201
        server.start()
        answer = await caller.settled(gateway, key)
        assert answer.status_code == 201
        assert is_replay(await caller.post(gateway, key))
        assert ledger.attempts(key) == ["1"]


async def test_a_login_that_redis_refuses_is_told_without_its_password(
    start: Start, ledger: Ledger, caller: Caller
) -> None:
    with RedisServer(config={"requirepass": f"{PASSWORD_MARK}right"}) as server:
        place = server.url.removeprefix("redis://")
        right = start(ledger.url, f"redis://:{PASSWORD_MARK}right@{place}", cache_timeout=UNHURRIED).ready()
        wrong = start(ledger.url, f"redis://:{PASSWORD_MARK}wrong@{place}", cache_timeout=UNHURRIED).ready()
        key = fresh_key()
        refused = await caller.post(wrong, key)
        assert slug(refused) == "cache-unavailable"
        assert PASSWORD_MARK not in refused.text
        assert (await caller.post(right, key)).status_code == 201
        assert is_replay(await caller.post(right, key))
        await until(lambda: "login" in wrong.text(), "the log names the cause")
        for gateway in (right, wrong):
            assert PASSWORD_MARK not in gateway.text()


async def test_replays_go_on_while_redis_refuses_writes(
    redis_gateway: Gateway, own_redis: RedisServer, ledger: Ledger, caller: Caller
) -> None:
    done, fresh = fresh_key(), fresh_key()
    assert (await caller.post(redis_gateway, done)).status_code == 201
    own_redis.command("CONFIG", "SET", "min-replicas-to-write", "1")
    assert is_replay(await caller.post(redis_gateway, done))
    assert slug(await caller.post(redis_gateway, fresh)) == "cache-unavailable"
    assert ledger.arrivals(fresh) == []
    own_redis.command("CONFIG", "SET", "min-replicas-to-write", "0")
    own_redis.command("CONFIG", "SET", "maxmemory", "1")
    assert is_replay(await caller.post(redis_gateway, done))
    assert slug(await caller.post(redis_gateway, fresh)) == "cache-unavailable"
    assert ledger.arrivals(fresh) == []


async def test_an_outcome_is_stored_although_redis_has_become_full(
    redis_gateway: Gateway, own_redis: RedisServer, ledger: Ledger, caller: Caller
) -> None:
    key = fresh_key()
    with ledger.gate() as gate:
        ledger.answer(key, Reply(gate=gate), Reply(500))
        task = caller.send(redis_gateway, key)
        await until(lambda: is_in_flight(own_redis.url, "system"), "the claim is made")
        own_redis.command("CONFIG", "SET", "maxmemory", "1")
        gate.open()
        assert (await task).status_code == 201
    assert is_replay(await caller.post(redis_gateway, key))
    assert ledger.attempts(key) == ["1"]
