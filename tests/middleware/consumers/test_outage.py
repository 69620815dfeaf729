"""The cache goes away under a consumer: a real redis-server that is paused, stopped and started again."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from oncegate import Action, DeliveryDecision, NotRecorded, Recording, Subscription, SubscriptionSettings
from oncegate.cache.memory.store import MemoryCache
from oncegate.cache.record import Claim, ClaimRequest, State
from oncegate.cache.redis.store import RedisCache
from oncegate.middleware.rules.keys.key import record_id
from testing.servers import RedisServer
from testing.waiting import until
from tests.cache.inside import timed
from tests.middleware.conftest import MakeSubscription
from tests.middleware.deliveries import GATEWAYS, PAY, Records
from tests.middleware.door import PATIENCE


@pytest.fixture
async def cache(server: RedisServer) -> AsyncIterator[RedisCache]:
    cache = RedisCache.from_url(server.url, timeout=PATIENCE)
    yield cache
    await cache.close()


class Losing:
    """A real cache on a server that does not answer claims in time."""

    def __init__(self, cache: RedisCache, server: RedisServer) -> None:
        self._cache = cache
        self._server = server

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    async def claim(self, key: str, request: ClaimRequest, **how: Any) -> Claim:
        self._server.pause()
        try:
            with timed(self._cache):
                return await self._cache.claim(key, request, **how)
        finally:
            self._server.resume()


def losing(cache: RedisCache, server: RedisServer, namespace: str, **settings: Any) -> Subscription:
    cut: Any = Losing(cache, server)
    return Subscription("ledger", cache=cut, namespace=namespace, settings=SubscriptionSettings(**settings))


# -- when a delivery begins -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "decision", "action"),
    [
        ("fail_closed", DeliveryDecision.UNAVAILABLE, Action.REDELIVER),
        ("dead_letter", DeliveryDecision.UNCHECKED, Action.DEAD_LETTER),
    ],
)
async def test_without_the_cache_nothing_runs_and_nothing_counts(
    subscribe: MakeSubscription, server: RedisServer, policy: str, decision: DeliveryDecision, action: Action
) -> None:
    ledger = subscribe("ledger", on_cache_down=policy, max_attempts=1, aliases=("old",))
    server.stop()
    begun = await ledger.begin(PAY)
    assert (begun.decision, begun.action) == (decision, action)
    assert "can't be reached" in begun.reason
    server.start()
    begun = await ledger.begin(PAY)
    assert (begun.decision, begun.attempt) == (DeliveryDecision.RUN, 1)
    await begun.execution.succeed()


async def test_without_the_cache_a_delivery_runs_unprotected_where_it_may(
    subscribe: MakeSubscription, server: RedisServer
) -> None:
    ledger = subscribe("ledger", on_cache_down="fail_open")
    server.stop()
    begun = await ledger.begin(PAY)
    assert (begun.run, begun.attempt) == (True, 0)
    assert await begun.execution.succeed() is Recording.NO_RECORD
    assert begun.execution.action is Action.ACKNOWLEDGE


async def test_a_claim_whose_answer_was_lost_does_not_count(
    cache: RedisCache, server: RedisServer, namespace: str, subscribe: MakeSubscription
) -> None:
    await cache.get("warm:up")  # the connection is there, so that the claim is sent
    begun = await losing(cache, server, namespace).begin(PAY)
    assert begun.decision is DeliveryDecision.UNAVAILABLE

    async def runs() -> bool:
        nonlocal begun
        begun = await subscribe("ledger", max_attempts=1).begin(PAY)
        return begun.run

    await until(runs)
    assert begun.attempt == 1
    await begun.execution.succeed()


async def test_a_claim_that_is_won_late_is_recorded_where_it_runs_all_the_same(
    cache: RedisCache, server: RedisServer, namespace: str, records: Records
) -> None:
    await cache.get("warm:up")  # the connection is there, so that the claim is sent
    ledger = losing(cache, server, namespace, on_cache_down="fail_open")
    begun = await ledger.begin(PAY)
    assert (begun.run, begun.attempt) == (True, 0)

    await records.until("ledger", State.IN_FLIGHT)
    assert await begun.execution.succeed(b"7") is Recording.RECORDED
    assert await records.state("ledger") is State.SUCCEEDED
    assert await ledger.drain(PATIENCE) == 0


async def test_a_full_cache_is_there_and_says_no(namespace: str) -> None:
    full = MemoryCache(limit_bytes=1)
    for policy in ("fail_closed", "fail_open", "dead_letter"):
        rules = SubscriptionSettings.model_validate({"on_cache_down": policy})
        begun = await Subscription("ledger", cache=full, namespace=namespace, settings=rules).begin(PAY)
        assert (begun.decision, begun.action) == (DeliveryDecision.UNAVAILABLE, Action.REDELIVER)


@pytest.mark.parametrize("whose", ["the gateway's", "the consumer's", "its former name's"])
async def test_a_record_that_can_t_be_read_is_no_miss(
    subscribe: MakeSubscription, server: RedisServer, records: Records, whose: str
) -> None:
    key = {
        "the gateway's": records.submission,
        "the consumer's": records.of("ledger"),
        "its former name's": records.of("old"),
    }[whose]
    server.command("SET", key, b"\x09damaged", "EX", 60)
    ledger = subscribe("ledger", aliases=("old",), on_cache_down="fail_open")
    begun = await ledger.begin(replace(PAY, record=record_id(records.submission), fingerprint=GATEWAYS))
    assert (begun.decision, begun.action) == (DeliveryDecision.UNREADABLE, Action.DEAD_LETTER)


# -- when it ends -----------------------------------------------------------------------------------------------------


async def test_a_success_is_not_acknowledged_before_it_is_recorded(
    subscribe: MakeSubscription, server: RedisServer
) -> None:
    begun = await subscribe("ledger", record_timeout=0.1).begin(PAY)
    server.stop()
    recording = await begun.execution.succeed(b"7")
    assert (recording, bool(recording), begun.execution.action) == (Recording.PENDING, False, Action.REDELIVER)
    server.start()
    assert await begun.execution.recorded(PATIENCE) is Recording.RECORDED
    assert begun.execution.action is Action.ACKNOWLEDGE
    assert (await subscribe("ledger").begin(PAY)).result == b"7"


async def test_succeed_waits_for_the_cache_to_come_back(subscribe: MakeSubscription, server: RedisServer) -> None:
    begun = await subscribe("ledger", record_timeout=PATIENCE).begin(PAY)
    server.stop()
    succeeding = asyncio.create_task(begun.execution.succeed())
    server.start()
    assert await succeeding is Recording.RECORDED


async def test_a_last_failure_is_dead_lettered_although_its_record_waits(
    subscribe: MakeSubscription, server: RedisServer, records: Records
) -> None:
    ledger = subscribe("ledger", record_timeout=0.1, max_attempts=1)
    begun = await ledger.begin(PAY)
    server.stop()
    assert await begun.execution.fail("no") is Recording.PENDING
    assert begun.execution.action is Action.DEAD_LETTER
    server.start()
    assert await ledger.drain(PATIENCE) == 0
    assert await records.state("ledger") is State.FAILED


async def test_a_success_that_is_not_recorded_yet_raises_out_of_the_loop(
    subscribe: MakeSubscription, server: RedisServer
) -> None:
    async def consume() -> None:
        async for attempt in subscribe("ledger", record_timeout=0.1).once(PAY):
            async with attempt:
                server.stop()

    with pytest.raises(NotRecorded) as refusal:
        await consume()
    assert refusal.value.recording is Recording.PENDING
    server.start()


async def test_what_waits_to_be_recorded_does_not_run_again_here_after_its_lease(
    subscribe: MakeSubscription, server: RedisServer
) -> None:
    ledger = subscribe("ledger", lease=0.3, record_timeout=0.1)
    begun = await ledger.begin(PAY)
    server.stop()
    assert await begun.execution.succeed() is Recording.PENDING
    await asyncio.sleep(0.4)  # nothing is there that would tell of the lapse
    server.start()
    while (again := await ledger.begin(PAY)).decision is not DeliveryDecision.DUPLICATE:
        assert again.decision is DeliveryDecision.IN_FLIGHT
        await asyncio.sleep(0.01)


# -- what it costs ----------------------------------------------------------------------------------------------------


async def test_a_first_execution_costs_two_commands_and_a_duplicate_one(
    subscribe: MakeSubscription, server: RedisServer, cache: RedisCache, records: Records
) -> None:
    await cache.get("warm:up")
    ledger = subscribe("ledger")
    with server.monitored() as first:
        await (await ledger.begin(PAY)).execution.succeed()
    with server.monitored() as duplicate:
        assert (await ledger.begin(PAY)).action is Action.ACKNOWLEDGE
    assert ([line.split()[0] for line in first], len(duplicate)) == (["EVALSHA"] * 2, 1)
    with server.monitored() as renamed:
        assert (await subscribe("new", aliases=("older", "ledger")).begin(PAY)).action is Action.ACKNOWLEDGE
    assert len(renamed) == 2, "one for each alias; the old name's record decides, so that nothing is claimed"


async def test_a_command_of_the_gateway_costs_one_more(
    subscribe: MakeSubscription, server: RedisServer, cache: RedisCache, records: Records
) -> None:
    await cache.get("warm:up")
    ledger = subscribe("ledger")
    command = replace(PAY, record=record_id(records.submission), fingerprint=GATEWAYS)
    with server.monitored() as first:
        await (await ledger.begin(command)).execution.succeed()
    with server.monitored() as duplicate:
        assert (await ledger.begin(command)).action is Action.ACKNOWLEDGE
    assert ([line.split()[0] for line in first], len(duplicate)) == (["EVALSHA"] * 3, 2)
    server.command("FLUSHALL")
    await records.submit(State.SUCCEEDED, mark=False)
    with server.monitored() as executed_by_the_gateway:
        assert (await ledger.begin(command)).action is Action.ACKNOWLEDGE
    assert len(executed_by_the_gateway) == 2
