"""Consumers are killed (SIGKILL) between parking and the acknowledgement, between a number and what is parked behind it, and in
the sweep: each message is applied once, in their order.

Rules of docs/contract.md: R12.17.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sql.ordered_consumers import STEPS
from tests.sql.places import Place


@pytest.mark.parametrize("place", ["psycopg", "pysqlite"], indirect=True)
def test_wherever_a_consumer_dies_each_is_applied_once_in_their_order(place: Place) -> None:
    command = [sys.executable, "-m", "tests.sql.ordered_consumers", place.url]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    killed = {name: [-signal.SIGKILL if step[2] else 0 for step in steps] for name, steps in STEPS.items()}
    assert json.loads(done.stdout) == killed, done.stderr
    place_in_table = "ctid" if place.is_postgresql else "rowid"
    applied = [row.what for row in place.execute(f"SELECT what FROM effects ORDER BY {place_in_table}")]
    for name in STEPS:
        count = 3 if name == "in the sweep" else 2
        assert [each for each in applied if each.startswith(name)] == [f"{name}: {n}" for n in range(1, count + 1)]
    assert place.execute("SELECT count(*) FROM oncegate_parked")[0][0] == 0
