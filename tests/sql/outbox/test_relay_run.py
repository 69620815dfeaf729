"""The load test of the relay, small: loadtests/runs/relay.py says what is done, and 100,000 rows are its default.

Rules of docs/contract.md: R12.32.
"""

import pytest
from rich.console import Console

from loadtests.runs.relay import Ledger, Plan, judged, perform_on
from testing.postgresql import PostgreSQLServer


@pytest.mark.timeout(300)  # relays are killed and started again
def test_all_that_was_committed_arrives_in_order_while_relays_are_killed(postgresql: PostgreSQLServer) -> None:
    """Wherever chance kills them. Removed before it is published, a message is lost in one run of three: test_deaths.py has them
    die at that point.
    """
    plan = Plan(rows=300, aggregates=10, relays=2, writers=8, kill_every=40, long=10)
    figures = perform_on(postgresql, plan, Console(quiet=True))
    assert figures.right, figures
    assert figures.kills >= 1, figures
    assert figures.rolled_back > 0, figures


def test_a_run_that_lost_inverted_or_made_up_a_message_is_seen() -> None:
    ledger = Ledger()
    ledger.rows = {"k1": ("a", 1), "k2": ("a", 2), "k3": ("b", 1)}
    entry = {b"k1": (b"a", b"1"), b"k2": (b"a", b"2"), b"k3": (b"b", b"1"), b"k4": (b"b", b"2")}

    def stream(*keys: bytes) -> tuple[int, int, int, int]:
        entries = [{b"key": key, b"aggregate": entry[key][0], b"sequence": entry[key][1]} for key in keys]
        found = judged(ledger, entries)
        return found.lost, found.inversions, found.never_committed, found.published_again

    assert stream(b"k1", b"k3", b"k2", b"k1") == (0, 0, 0, 1)
    assert stream(b"k2", b"k1", b"k3") == (0, 2, 0, 0)
    assert stream(b"k1", b"k3") == (1, 0, 0, 0)
    assert stream(b"k1", b"k2", b"k3", b"k4") == (0, 0, 1, 0)
