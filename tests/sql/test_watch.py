"""An inbox's decisions, as a `Watch` gets them and as Prometheus sees them."""

import pytest
from prometheus_client import CollectorRegistry

from oncegate import Watch
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


def test_a_watch_that_raises_changes_nothing(place: Place) -> None:
    class Broken(Watch):
        def message_marked(self, consumer: str, decision: str) -> None:
            raise RuntimeError("no")

    billing = Inbox("billing", watch=Broken())
    assert [place.deliver(billing, "a").first for _ in range(2)] == [True, False]
    assert place.effects() == ["a"]
