"""What a consumer tells Prometheus: deliveries by decision, executions by outcome, what is given up; and who it was.

Rules of docs/contract.md: R12.10.
"""

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from oncegate import Delivery, DeliveryDecision, NotRetryable, Recording, SubscriptionSettings, Watch
from oncegate.cache.memory.store import MemoryCache
from oncegate.middleware.consumers.subscription import Subscription
from oncegate.prometheus import ConsumerMetrics, MiddlewareMetrics
from testing.servers import RedisServer
from testing.waiting import until
from tests.middleware.conftest import MakeSubscription
from tests.middleware.deliveries import PAY, Records


class Counted:
    """The metrics of consumer ``ledger``, and their values that are not 0."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = ConsumerMetrics("ledger", registry=self.registry)

    def values(self, name: str) -> dict[str, float]:
        """By the last label."""
        return {
            ["", *sample.labels.values()][-1]: sample.value
            for family in self.registry.collect()
            for sample in family.samples
            if sample.name == name and sample.value
        }


@pytest.fixture
def counted() -> Counted:
    return Counted()


async def test_deliveries_executions_and_dead_letters_are_counted(
    subscribe: MakeSubscription, counted: Counted
) -> None:
    async def pay(amount: int) -> int:
        if amount < 0:
            raise NotRetryable("no such amount")
        if amount == 0:
            raise ValueError("nothing to pay")
        return amount

    ledger = subscribe("ledger", watch=counted.metrics, max_attempts=2)
    for key, amount in (("a", 1), ("a", 1), ("a", 2), ("b", 0), ("b", 0), ("b", 0), ("c", -1), ("", 1)):
        await ledger.execute(Delivery(key, b"%d" % amount), pay, amount)
    assert counted.values("oncegate_deliveries_total") == {
        "run": 4,
        "duplicate": 1,
        "key-reused": 1,
        "exhausted": 1,
        "rejected": 1,
    }
    assert counted.values("oncegate_executions_total") == {"succeeded": 1, "failed": 3}
    assert counted.values("oncegate_execution_seconds_count") == {"ledger": 4}
    # b: by its last attempt, and once more by the copy that came after it
    assert counted.values("oncegate_dead_letters_total") == {"exhausted": 2, "rejected": 2, "key-reused": 1}
    await until(lambda: counted.values("oncegate_executions_in_flight") == {})


async def test_what_is_executed_now_is_counted(subscribe: MakeSubscription, counted: Counted) -> None:
    ledger = subscribe("ledger", watch=counted.metrics)
    begun = await ledger.begin(PAY)
    assert counted.values("oncegate_executions_in_flight") == {"ledger": 1}
    await begun.execution.unknown()
    await until(lambda: counted.values("oncegate_executions_in_flight") == {})
    assert counted.values("oncegate_executions_total") == {"unknown": 1}


async def test_outcomes_that_wait_for_the_cache_are_counted(server: RedisServer, counted: Counted) -> None:
    rules = SubscriptionSettings(record_timeout=0.05)
    ledger = Subscription("ledger", cache=server.url, settings=rules, watch=counted.metrics)
    begun = await ledger.begin(PAY)
    server.stop()
    await begun.execution.succeed()
    assert counted.values("oncegate_execution_outcomes_waiting") == {"": 1}
    server.start()
    await until(lambda: counted.values("oncegate_execution_outcomes_waiting") == {})
    await ledger.drain()
    await ledger.cache.close()


async def test_a_late_outcome_is_no_dead_letter(
    subscribe: MakeSubscription, counted: Counted, records: Records
) -> None:
    ledger = subscribe("ledger", watch=counted.metrics)
    begun = await ledger.begin(PAY)
    assert await ledger.cache.release(records.of("ledger"), token=(await records.execution("ledger")).token)
    other = await subscribe("ledger").begin(PAY)
    assert await begun.execution.fail("no", final=True) is Recording.REFUSED
    assert counted.values("oncegate_dead_letters_total") == {}
    assert counted.values("oncegate_execution_outcomes_refused_total") == {"ledger": 1}
    await other.execution.succeed()


async def test_a_failure_that_is_given_twice_is_one_dead_letter(subscribe: MakeSubscription, counted: Counted) -> None:
    begun = await subscribe("ledger", watch=counted.metrics).begin(PAY)
    for _ in range(2):
        await begun.execution.fail("no", final=True)
    assert counted.values("oncegate_dead_letters_total") == {"rejected": 1}


async def test_every_series_is_there_from_the_start() -> None:
    registry = CollectorRegistry()
    ConsumerMetrics("ledger", "mail", registry=registry)
    MiddlewareMetrics(registry=registry)  # an app may have both
    samples = [sample for family in registry.collect() for sample in family.samples]
    of_consumers = [sample for sample in samples if sample.labels.get("consumer") == "mail"]
    decisions = {sample.labels["decision"] for sample in of_consumers if sample.name == "oncegate_deliveries_total"}
    assert decisions == {decision.value for decision in DeliveryDecision}
    assert {sample.name for sample in of_consumers} >= {
        "oncegate_executions_total",
        "oncegate_dead_letters_total",
        "oncegate_executions_in_flight",
        "oncegate_execution_seconds_sum",
        "oncegate_execution_leases_lost_total",
        "oncegate_execution_outcomes_refused_total",
        "oncegate_inbox_deliveries_total",
    }
    assert all(sample.value == 0 for sample in of_consumers if not sample.name.endswith("_created"))
    assert [sample.value for sample in samples if sample.name == "oncegate_execution_outcomes_waiting"] == [0]


def test_what_is_no_consumer_s_name_is_refused() -> None:
    with pytest.raises(ValueError, match="a consumer's name has 1 to 64"):
        ConsumerMetrics("a key: order-7", registry=CollectorRegistry())


async def test_a_watch_that_raises_changes_nothing(subscribe: MakeSubscription) -> None:
    class Broken(Watch):
        def delivery_decided(self, consumer: str, decision: str) -> None:
            raise RuntimeError("no")

        def dead_lettered(self, consumer: str, reason: str) -> None:
            raise RuntimeError("no")

    ledger = subscribe("ledger", watch=Broken())
    assert await (await ledger.begin(PAY)).execution.succeed()
    assert (await ledger.begin(Delivery("key-1", b"other"))).decision is DeliveryDecision.MISMATCH


async def test_a_watch_of_before_these_events_changes_nothing(subscribe: MakeSubscription) -> None:
    class Former:
        """Not a subclass, so it lacks what is new."""

        def __getattr__(self, name: str) -> Any:
            if name in ("delivery_decided", "dead_lettered"):
                raise AttributeError(name)
            return lambda *_: None

        def attempt_began(self, route: str) -> None:
            """See `Watch`."""

    former: Any = Former()
    ledger = subscribe("ledger", watch=former)
    assert await (await ledger.begin(PAY)).execution.succeed()


async def test_a_name_stands_for_the_host_s_in_records() -> None:
    cache = MemoryCache()
    ledger = Subscription("ledger", cache=cache, name="billing-eu-1")
    begun = await ledger.begin(PAY)
    await begun.execution.succeed()
    record = await Records(cache, "default").execution("ledger")
    assert record.trace.gateway.startswith("billing-eu-1/")
    with pytest.raises(ValueError, match="name has at most 64"):
        Subscription("ledger", cache=cache, name="no name\n")
