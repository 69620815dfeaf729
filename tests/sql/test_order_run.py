"""The load test of the order, small: loadtests/order_run.py says what is done, and 100,000 events are its default."""

import pytest
from rich.console import Console

from loadtests.order_run import Plan, perform


@pytest.mark.timeout(300)  # processes that are killed and started anew
def test_shuffled_events_are_applied_once_in_their_order_while_consumers_are_killed() -> None:
    plan = Plan(events=200, aggregates=10, fail=0.05, consumers=2, kill_every=150, dies_one_in=0)
    figures = perform(plan, Console(quiet=True))
    assert figures.right, figures
    assert figures.kills >= 1, figures
    assert figures.published > figures.events
