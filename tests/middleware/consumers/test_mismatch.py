"""Another payload under a consumer's used key, where the policy is to warn: taken for the same, logged and counted.

Rules of docs/contract.md: R8.21.
"""

import logging

import pytest
from prometheus_client import CollectorRegistry

from oncegate import Action, Delivery, DeliveryDecision, Subscription
from oncegate.prometheus import ConsumerMetrics
from tests.middleware.conftest import MakeSubscription
from tests.middleware.deliveries import PAY, Records

OTHER = Delivery("key-1", b'{"amount": 500}')
LINE = "another payload under a used key, taken for the same"


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def ledger(subscribe: MakeSubscription, registry: CollectorRegistry) -> Subscription:
    return subscribe("ledger", watch=ConsumerMetrics("ledger", registry=registry), on_mismatch="warn", max_attempts=2)


def counted(registry: CollectorRegistry) -> tuple[float | None, float | None]:
    """Mismatches that were warned of, and duplicates."""
    name = "oncegate_deliveries_total"
    return (
        registry.get_sample_value("oncegate_delivery_mismatches_warned_total", {"consumer": "ledger"}),
        registry.get_sample_value(name, {"consumer": "ledger", "decision": "duplicate"}),
    )


async def test_after_a_success_it_is_a_duplicate(
    ledger: Subscription, registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    await (await ledger.begin(PAY)).execution.succeed(b"5")
    again = await ledger.begin(PAY)
    assert (again.decision, again.mismatch) == (DeliveryDecision.DUPLICATE, False)
    other = await ledger.begin(OTHER)
    assert (other.decision, other.action, other.mismatch) == (DeliveryDecision.DUPLICATE, Action.ACKNOWLEDGE, True)
    assert other.result == b"5"
    assert counted(registry) == (1, 2)
    assert [LINE in each.getMessage() for each in caplog.records if each.levelno == logging.WARNING] == [True]


async def test_in_flight_it_comes_again_without_a_warning(
    ledger: Subscription, registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    begun = await ledger.begin(PAY)
    other = await ledger.begin(OTHER)
    assert (other.decision, other.action, other.mismatch) == (DeliveryDecision.IN_FLIGHT, Action.REDELIVER, False)
    assert (counted(registry), LINE in caplog.text) == ((0, 0), False)
    await begun.execution.succeed()


async def test_after_a_failure_it_is_the_next_attempt_and_the_last_one_counts(
    ledger: Subscription, registry: CollectorRegistry, records: Records
) -> None:
    await (await ledger.begin(PAY)).execution.fail("no")
    other = await ledger.begin(OTHER)
    assert (other.run, other.attempt, other.mismatch) == (True, 2, True)
    await other.execution.fail("no")
    assert other.execution.action is Action.DEAD_LETTER
    assert [(await ledger.begin(each)).decision for each in (PAY, OTHER)] == [DeliveryDecision.EXHAUSTED] * 2
    assert counted(registry) == (2, 0)


async def test_under_a_former_name_it_is_a_duplicate_too(subscribe: MakeSubscription) -> None:
    await (await subscribe("ledger").begin(PAY)).execution.succeed(b"5")
    other = await subscribe("ledger-2", aliases=("ledger",), on_mismatch="warn").begin(OTHER)
    assert (other.decision, other.mismatch, other.result) == (DeliveryDecision.DUPLICATE, True, b"5")


async def test_it_is_a_dead_letter_otherwise(subscribe: MakeSubscription) -> None:
    await (await subscribe("ledger").begin(PAY)).execution.succeed(b"5")
    other = await subscribe("ledger").begin(OTHER)
    assert (other.decision, other.mismatch, other.result) == (DeliveryDecision.MISMATCH, False, None)
