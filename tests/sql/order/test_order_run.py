"""The load test of the order, small: loadtests/runs/order.py describes it, and 100,000 events are its default."""

import pytest
from rich.console import Console

from loadtests.runs.order import Plan, perform_on
from testing.postgresql import PostgreSQLServer


@pytest.mark.timeout(300)  # processes that are killed and started anew
def test_shuffled_events_are_applied_once_in_their_order_while_consumers_are_killed(
    postgresql: PostgreSQLServer, rabbit_broker_url: str
) -> None:
    plan = Plan(events=120, aggregates=20, fail=0.05, consumers=2, kill_every=80, dies_one_in=0)
    figures = perform_on(postgresql, rabbit_broker_url, plan, Console(quiet=True))
    assert figures.right, figures
    assert figures.kills >= 1, figures
    assert figures.published > figures.events
