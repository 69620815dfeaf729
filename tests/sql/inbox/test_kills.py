"""Consumers are killed (SIGKILL) at named points, or stand still (SIGSTOP), and their messages are delivered again: what the
producer has sent is there once.

The handler adds up, and checks nothing. Without the inbox the same kills lead to more: the tests can see it.

Rules of docs/contract.md: R12.14.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing import template
from testing.servers import RedisServer
from tests.sql.conftest import PRELOADED
from tests.sql.consumers import POINTS, STANDS_STILL
from tests.sql.places import Place

AT_ONCE = {"in ten processes": (10, 1), "in two processes": (2, 5)}
"""The numbers of processes, and of threads in each, that get one message at once."""


pytestmark = pytest.mark.timeout(300)  # dozens of processes, one after the other


@pytest.fixture
def own_redis_url() -> Iterator[str]:
    with RedisServer() as server:
        yield server.url


def balances(
    place: Place, folder: Path, *options: str, stands_still: bool = False
) -> tuple[dict[str, int], dict[str, int], dict[str, list[int]]]:
    """What the producer has sent, what came of it, and the exit codes of the consumers that lived."""
    ledger = folder / "ledger"
    points = [*POINTS, *[STANDS_STILL] * stands_still]
    messages = [{"key": point, "amount": 3, "point": point, "deliveries": 1, "threads": 1} for point in points]
    messages += [
        {"key": key, "amount": 5, "point": "", "deliveries": processes, "threads": threads}
        for key, (processes, threads) in AT_ONCE.items()
    ]
    ledger.write_text("".join(json.dumps(message) + "\n" for message in messages))
    place.execute("DROP TABLE IF EXISTS account")
    place.execute("CREATE TABLE account (name TEXT PRIMARY KEY, balance INTEGER NOT NULL)")
    for message in messages:
        place.execute("INSERT INTO account VALUES (:name, 0)", name=message["key"])
    command = ["-m", "tests.sql.consumers", place.url, str(ledger), *options]
    done = template.run(*command, preloaded=PRELOADED, timeout=280, cwd=template.ROOT)
    assert done.returncode == 0, done.stderr
    sent = {str(message["key"]): int(str(message["amount"])) for message in messages}
    got = {row.name: row.balance for row in place.execute("SELECT name, balance FROM account")}
    return sent, got, json.loads(done.stdout)


@pytest.mark.parametrize("place", ["psycopg", "aiosqlite"], indirect=True)  # the others: under a hook that remembers
def test_the_accounts_equal_the_ledger_wherever_a_consumer_dies(place: Place, tmp_path: Path) -> None:
    check_balances(place, tmp_path)


@pytest.mark.parametrize("place", ["asyncpg", "pysqlite"], indirect=True)
def test_under_a_hook_that_remembers_too(place: Place, tmp_path: Path, own_redis_url: str) -> None:
    check_balances(place, tmp_path, own_redis_url)


def check_balances(place: Place, folder: Path, *options: str) -> None:
    """One that stands still for longer than its limit loses its transaction on PostgreSQL: its late COMMIT fails."""
    sent, got, codes = balances(place, folder, *options, stands_still=place.is_postgresql)
    assert got == sent
    expected = {point: [0] for point in POINTS} | {key: [0] * processes for key, (processes, _) in AT_ONCE.items()}
    if place.is_postgresql:
        expected[STANDS_STILL] = [0, 2, 0]
    assert codes == expected


@pytest.mark.parametrize("place", ["psycopg", "aiosqlite"], indirect=True)
def test_without_the_inbox_the_same_kills_lead_to_more(place: Place, tmp_path: Path) -> None:
    sent, got, _ = balances(place, tmp_path, "--without-inbox")
    times = {name: got[name] // amount for name, amount in sent.items()}
    expected = {"after the effect": 1, "after COMMIT": 2, "after the record": 2}
    expected |= {key: processes * threads for key, (processes, threads) in AT_ONCE.items()}
    assert {name: times[name] for name in expected} == expected
