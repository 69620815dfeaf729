"""Consumers are killed (SIGKILL) at named points, and their messages delivered again: what the producer has sent is there once.

The handler adds up, and checks nothing. Without the inbox the same kills lead to more: the tests can see it.

Rules of docs/contract.md: R12.14.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sql.conftest import SESSIONS
from tests.sql.consumers import POINTS
from tests.sql.places import Place

AT_ONCE = 10


def balances(place: Place, folder: Path, *options: str) -> tuple[dict[str, int], dict[str, int], dict[str, list[int]]]:
    """What the producer has sent, what came of it, and the exit codes of the consumers that lived."""
    ledger = folder / "ledger"
    messages = [{"key": point, "amount": 3, "point": point, "deliveries": 1} for point in POINTS]
    messages.append({"key": "at once", "amount": 5, "point": "", "deliveries": AT_ONCE})
    ledger.write_text("".join(json.dumps(message) + "\n" for message in messages))
    place.execute("DROP TABLE IF EXISTS account")
    place.execute("CREATE TABLE account (name TEXT PRIMARY KEY, balance INTEGER NOT NULL)")
    for message in messages:
        place.execute("INSERT INTO account VALUES (:name, 0)", name=message["key"])
    command = [sys.executable, "-m", "tests.sql.consumers", place.url, str(ledger), *options]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    sent = {str(message["key"]): int(str(message["amount"])) for message in messages}
    got = {row.name: row.balance for row in place.execute("SELECT name, balance FROM account")}
    return sent, got, json.loads(done.stdout)


@pytest.mark.parametrize("place", SESSIONS, indirect=True)
def test_the_accounts_equal_the_ledger_wherever_a_consumer_dies(place: Place, tmp_path: Path) -> None:
    sent, got, codes = balances(place, tmp_path)
    assert got == sent
    assert codes == {point: [0] for point in POINTS} | {"at once": [0] * AT_ONCE}


@pytest.mark.parametrize("place", ["psycopg"], indirect=True)
def test_without_the_inbox_the_same_kills_lead_to_more(place: Place, tmp_path: Path) -> None:
    sent, got, _ = balances(place, tmp_path, "--without-inbox")
    times = {name: got[name] // amount for name, amount in sent.items()}
    expected = {"after the effect": 1, "after COMMIT": 2, "after the record": 2, "at once": AT_ONCE}
    assert {name: times[name] for name in expected} == expected
