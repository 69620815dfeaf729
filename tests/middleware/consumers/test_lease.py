"""A delivery's lease: renewed while its command runs, lost to a successor, and never written over after that."""

import asyncio
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any

import pytest

from oncegate import Action, DeliveryDecision, Recording, Subscription, SubscriptionSettings
from oncegate.cache.record import Claim, ClaimRequest, State
from oncegate.cache.store import Cache
from oncegate.middleware.admission.lease import LeaseLost
from oncegate.middleware.admission.observe import Watch
from testing.records import SUCCESSOR, read
from testing.waiting import until
from tests.middleware.conftest import Elsewhere, MakeSubscription
from tests.middleware.deliveries import PAY, Records, taking_over
from tests.middleware.door import PATIENCE


def lapsing(records: Records) -> Callable[[Cache], Coroutine[Any, Any, None]]:
    """Time passes until the lease has lapsed."""

    async def lapse(cache: Cache) -> None:
        async def lapsed() -> bool:
            found = await cache.get(records.of("ledger"))
            return found is not None and found.record.state is State.UNKNOWN

        await until(lapsed)

    return lapse


async def test_the_lease_is_renewed_while_the_command_runs(subscribe: MakeSubscription, records: Records) -> None:
    begun = await subscribe("ledger", heartbeat=0.05, ttl=60).begin(PAY)
    left = 1e9

    async def renewed() -> bool:
        nonlocal left
        found = await read(records.cache, records.of("ledger"))
        before, left = left, found.remaining_ms
        return found.remaining_ms > before

    for _ in range(3):
        await until(renewed)
    await begun.execution.succeed()


def test_the_heartbeat_is_a_third_of_the_lease() -> None:
    assert SubscriptionSettings(lease=6).policy("ledger").heartbeat == 2
    assert SubscriptionSettings(lease=6, heartbeat=1).policy("ledger").heartbeat == 1


@pytest.mark.parametrize("outcome", ["succeed", "fail", "unknown"])
async def test_a_consumer_that_lost_its_lease_is_refused_and_told(
    subscribe: MakeSubscription, records: Records, elsewhere: Elsewhere, outcome: str
) -> None:
    refused: list[str] = []

    class Watching(Watch):
        def outcome_refused(self, route: str) -> None:
            refused.append(route)

    begun = await subscribe("ledger", lease=0.3, max_attempts=1, watch=Watching()).begin(PAY)
    elsewhere(taking_over(records.of("ledger")))
    if outcome == "succeed":
        recording = await begun.execution.succeed()
    elif outcome == "unknown":
        recording = await begun.execution.unknown()
    else:
        recording = await begun.execution.fail("no", final=True)
    assert recording is Recording.REFUSED
    assert begun.execution.action is Action.REDELIVER
    record = await records.execution("ledger")
    assert (record.state, record.token, record.attempt) == (State.IN_FLIGHT, SUCCESSOR, 2)
    assert refused == ["ledger"]


async def test_a_release_after_a_takeover_leaves_the_successor_alone(
    subscribe: MakeSubscription, records: Records, elsewhere: Elsewhere
) -> None:
    begun = await subscribe("ledger", lease=0.3).begin(PAY)
    elsewhere(taking_over(records.of("ledger")))
    await begun.execution.release()
    assert await records.state("ledger") is State.IN_FLIGHT


async def test_an_outcome_after_the_lease_is_recorded_where_nobody_took_over(
    subscribe: MakeSubscription, records: Records, elsewhere: Elsewhere
) -> None:
    begun = await subscribe("ledger", lease=0.3).begin(PAY)
    elsewhere(lapsing(records))
    assert await begun.execution.succeed() is Recording.RECORDED
    assert await records.state("ledger") is State.SUCCEEDED


async def test_confirm_renews_an_old_lease_and_raises_for_a_lost_one(
    subscribe: MakeSubscription, records: Records, elsewhere: Elsewhere
) -> None:
    begun = await subscribe("ledger", lease=0.3, ttl=600).begin(PAY)
    elsewhere(lapsing(records))
    before = monotonic()
    await begun.execution.confirm()
    found = await read(records.cache, records.of("ledger"))
    passed_ms = 1000 * (monotonic() - before)  # the new lease may be over as well by now
    assert found.remaining_ms > 600_000 + 300 - passed_ms - 10
    elsewhere(taking_over(records.of("ledger")))
    with pytest.raises(LeaseLost):
        await begun.execution.confirm()
    await begun.execution.release()


class Pausing:
    """A real cache in a process that stands still right after it has won a claim."""

    def __init__(self, cache: Cache, then: Callable[[], None]) -> None:
        self._cache = cache
        self._then = then

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    async def claim(self, key: str, request: ClaimRequest, **how: Any) -> Claim:
        claim = await self._cache.claim(key, request, **how)
        self._then()
        return claim


async def test_a_paused_process_does_not_run_what_its_successor_runs(
    cache: Cache, namespace: str, records: Records, elsewhere: Elsewhere
) -> None:
    paused: Any = Pausing(cache, lambda: elsewhere(taking_over(records.of("ledger"))))
    ledger = Subscription("ledger", cache=paused, namespace=namespace, settings=SubscriptionSettings(lease=0.3))
    begun = await ledger.begin(PAY)
    assert (begun.decision, begun.action) == (DeliveryDecision.IN_FLIGHT, Action.REDELIVER)
    assert (await records.execution("ledger")).token == SUCCESSOR
    assert await ledger.drain(PATIENCE) == 0
    assert ledger.slots == 0


async def test_a_delivery_that_is_never_settled_loses_its_lease_after_the_time_out(
    subscribe: MakeSubscription, records: Records
) -> None:
    ledger = subscribe("ledger", attempt_timeout=0.2, lease=0.3, max_in_flight=1)
    begun = await ledger.begin(PAY)

    async def runs_again() -> bool:
        nonlocal begun
        begun = await ledger.begin(PAY)
        return begun.run

    await until(runs_again)
    assert begun.attempt == 2
    await begun.execution.succeed()


async def test_draining_waits_for_what_is_being_executed(subscribe: MakeSubscription) -> None:
    ledger = subscribe("ledger")
    begun = await ledger.begin(PAY)
    assert await ledger.drain(0.05) == 1
    draining = asyncio.create_task(ledger.drain(PATIENCE))
    await begun.execution.succeed()
    assert await draining == 0


async def test_two_deliveries_at_once_run_once(subscribe: MakeSubscription) -> None:
    made = await asyncio.gather(*[subscribe("ledger").begin(PAY) for _ in range(20)])
    running = [begun for begun in made if begun.run]
    assert len(running) == 1
    assert {begun.decision for begun in made if not begun.run} == {DeliveryDecision.IN_FLIGHT}
    await running[0].execution.succeed()
