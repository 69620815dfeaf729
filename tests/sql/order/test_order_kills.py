"""Consumers are killed (SIGKILL) between parking and the acknowledgement, between a number and what is parked behind it, in the
sweep, and in all attempts that a message has, which operators see: each message is applied once, in their order.

Rules of docs/contract.md: R12.17.
"""

import json
import signal

import pytest

from testing import template
from tests.sql.conftest import PRELOADED
from tests.sql.order.ordered_consumers import STEPS
from tests.sql.places import Place


@pytest.mark.parametrize("place", ["psycopg", "pysqlite"], indirect=True)
def test_wherever_a_consumer_dies_each_is_applied_once_in_their_order(place: Place) -> None:
    command = ["-m", "tests.sql.order.ordered_consumers", place.url]
    done = template.run(*command, preloaded=PRELOADED, timeout=100, cwd=template.ROOT)
    assert done.returncode == 0, done.stderr
    killed = {name: [-signal.SIGKILL if step[2] else 0 for step in steps] for name, steps in STEPS.items()}
    assert json.loads(done.stdout) == killed, done.stderr
    applied = place.effects_in_order()
    for name in STEPS:
        count = 3 if ("deliver", 3, 0) in STEPS[name] else 2
        assert [each for each in applied if each.startswith(name)] == [f"{name}: {n}" for n in range(1, count + 1)]
    assert place.execute("SELECT count(*) FROM oncegate_parked")[0][0] == 0
