"""What a request costs Redis, counted from what MONITOR shows; commands that scripts issue don't count.

Rules of docs/contract.md: R2.8, R2.9, R5.31.
"""

import pytest

from testing.caller import Caller, fresh_key, is_replay, slug
from testing.gateway import Gateway
from testing.ledger import Ledger
from testing.servers import RedisServer
from testing.waiting import until
from tests.system.conftest import Start


@pytest.fixture
async def gateway(start: Start, ledger: Ledger, quiet_redis: RedisServer, caller: Caller) -> Gateway:
    """A gateway that is connected already, alone on its Redis; leases too long for a renewal to fall due."""
    gateway = start(ledger.url, quiet_redis.url, cache_timeout=10, idempotency={"lease": 3600}).ready()
    assert (await caller.post(gateway, fresh_key())).status_code == 201
    return gateway


async def test_a_first_request_sends_two_commands_and_a_replay_one(
    gateway: Gateway, quiet_redis: RedisServer, caller: Caller
) -> None:
    key = fresh_key()
    with quiet_redis.monitored() as first:
        assert (await caller.post(gateway, key)).status_code == 201
    with quiet_redis.monitored() as replay:
        assert is_replay(await caller.post(gateway, key))
    assert [command.split()[0] for command in first] == ["EVALSHA", "EVALSHA"]
    assert [command.split()[0] for command in replay] == ["EVALSHA"]


async def test_what_passes_through_sends_none(gateway: Gateway, quiet_redis: RedisServer, caller: Caller) -> None:
    with quiet_redis.monitored() as commands:
        assert (await caller.get(gateway)).status_code == 201
        assert (await caller.keyless(gateway)).status_code == 201
    assert commands == []


async def test_refusals_that_need_no_record_send_none_and_others_one(
    gateway: Gateway, quiet_redis: RedisServer, ledger: Ledger, caller: Caller
) -> None:
    key = fresh_key()
    async with caller.held(ledger, gateway, key) as (task, gate):
        with quiet_redis.monitored() as in_flight:
            assert slug(await caller.post(gateway, key)) == "in-flight"
        with quiet_redis.monitored() as mismatch:
            assert slug(await caller.post(gateway, key, body=b"body-of-another")) == "key-reused"
        with quiet_redis.monitored() as waiter:  # in the process that executes: nothing to poll
            calls = quiet_redis.calls("evalsha")
            waiting = caller.send(gateway, key, wait=30)
            await until(lambda: quiet_redis.calls("evalsha") > calls, "the waiter has asked")
            gate.open()
            assert is_replay(await waiting)
            await task
    with quiet_redis.monitored() as invalid:
        assert slug(await caller.post(gateway, '"unclosed')) == "key-invalid"
    assert (len(in_flight), len(mismatch), len(invalid)) == (1, 1, 0)
    assert (
        len([command for command in waiter if command.startswith("EVALSHA")]) == 2
    )  # its claim, the attempt's completion
