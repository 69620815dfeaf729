"""The load test of the inbox, small: loadtests/runs/inbox.py describes it, and 20,000 messages are its default."""

import pytest
from rich.console import Console

from loadtests.runs.inbox import Plan, perform
from loadtests.runs.inbox_ways import WAYS


@pytest.mark.timeout(600)  # dozens of processes, and servers that are crashed
@pytest.mark.parametrize("way", WAYS)
def test_while_consumers_and_their_database_are_killed_the_balances_equal_the_ledger(
    way: str, rabbit_broker_url: str
) -> None:
    plan = Plan(messages=120, way=way, consumers=2, producers=8, kill_every=30, dies_one_in=30)
    figures = perform(plan, Console(quiet=True), rabbit_broker_url)
    assert figures.right, figures
    assert figures.kills >= 3, figures
    assert figures.database_crashes == 1, figures
    assert figures.published_again > 0, figures
    assert figures.skipped > 0, figures
    assert figures.records_forgotten > 0 or way != "gateway", figures
