"""An inbox's decisions, as a `Watch` gets them and as Prometheus sees them."""

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from oncegate import Delivery, MemoryCache, Subscription, Watch
from oncegate.prometheus import ConsumerMetrics
from oncegate.sql import Inbox, KeyReused
from tests.sql.places import Place


def test_decisions_are_counted(place: Place) -> None:
    registry = CollectorRegistry()
    metrics = ConsumerMetrics("billing", registry=registry)
    billing = Inbox("billing", watch=metrics)
    for key in ("a", "a", "b"):
        place.deliver(billing, key, payload=b"5")
    with pytest.raises(KeyReused):
        place.deliver(billing, "a", payload=b"6")
    place.deliver(Inbox("billing", on_mismatch="warn", watch=metrics), "a", payload=b"6")
    found = {
        decision: registry.get_sample_value(
            "oncegate_inbox_deliveries_total", {"consumer": "billing", "decision": decision}
        )
        for decision in ("first", "duplicate", "mismatch", "forgotten")
    }
    assert found == {"first": 2, "duplicate": 2, "mismatch": 2, "forgotten": 0}


def test_what_is_executed_without_a_marker_is_counted(place: Place) -> None:
    """By deliveries: a batch may have several."""
    registry = CollectorRegistry()
    billing = Inbox("billing", watch=ConsumerMetrics("billing", registry=registry))
    labels = {"consumer": "billing", "decision": "unmarked"}
    assert registry.get_sample_value("oncegate_inbox_deliveries_total", labels) == 0
    handler = place.handler(billing, lambda _, payload: payload)

    async def deliver() -> None:
        subscription = Subscription("billing", cache=MemoryCache())
        for key in (None, "a", None):
            await subscription.execute(Delivery(key, b"1"), handler, 1)

    asyncio.run(deliver())
    assert registry.get_sample_value("oncegate_inbox_deliveries_total", labels) == billing.unmarked == 2


def test_a_watch_that_raises_changes_nothing(place: Place) -> None:
    class Broken(Watch):
        def message_marked(self, consumer: str, decision: str) -> None:
            raise RuntimeError("no")

    billing = Inbox("billing", watch=Broken())
    assert [place.deliver(billing, "a").first for _ in range(2)] == [True, False]
    assert place.effects() == ["a"]
