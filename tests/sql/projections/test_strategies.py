"""One suite over all lines of the table in docs/projections.md: duplicates, deaths, disorder, a failed event.

The ledger is the producer's, never folded from what arrives. The last line, a handler that adds up and checks nothing,
over-counts: it proves the suite. (A `Projection`'s deaths and duplicates are in test_projection_kills.py.)

Rules of docs/contract.md: R12.54.
"""

import json
import random
import signal
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from testing import template
from testing.postgresql import PostgreSQLServer
from testing.template import ROOT
from tests.sql.conftest import ON_POSTGRESQL, PRELOADED
from tests.sql.places import Place, place_of
from tests.sql.projections.strategies import NOTHING, STRATEGIES, Event, Strategy, deliver, empty, make, model

MODULES = (*PRELOADED, "tests.sql.projections.strategies")
ALL_DRIVERS = [
    "asyncpg",
    "pysqlite",
    pytest.param("psycopg", marks=pytest.mark.long),
    pytest.param("aiosqlite", marks=pytest.mark.long),
]
"""By default one of each kind: with asyncio and without, PostgreSQL and SQLite."""


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    driver: str = request.param
    if driver in ON_POSTGRESQL:
        server: PostgreSQLServer = request.getfixturevalue("postgresql")
        yield make(place_of(server.url(server.database(), driver)))
    else:
        folder: Path = tmp_path_factory.mktemp(driver)
        yield make(place_of(f"sqlite+{driver}:///{folder}/app.db", connect_args={"timeout": 60}))


@pytest.fixture
def place(made: Place) -> Place:
    empty(made)
    return made


on_both = pytest.mark.parametrize("made", ALL_DRIVERS, indirect=True)
of_each = pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)


def produced(count: int, accounts: int = 1) -> list[Event]:
    versions: defaultdict[str, int] = defaultdict(int)
    found = []
    for position in range(1, count + 1):
        account = f"account-{position % accounts}"
        versions[account] += 1
        found.append(Event(account, versions[account], position))
    return found


def ledger(events: Sequence[Event]) -> dict[str, int]:
    found: defaultdict[str, int] = defaultdict(int)
    for event in events:
        found[event.account] += event.amount
    return dict(found)


def newest(events: Sequence[Event]) -> dict[str, int]:
    return {event.account: event.amount for event in sorted(events, key=lambda each: each.version)}


def expected(strategy: Strategy, events: Sequence[Event]) -> dict[str, int]:
    """Of what came in order."""
    return newest(events) if strategy.disordered == "newest" else ledger(events)


def until_settled(place: Place, strategy: Strategy, events: Sequence[Event]) -> None:
    """Delivers them in this order, and again what is not settled, as a broker does."""
    left = list(events)
    for _ in range(len(events) + 1):
        left = [event for event in left if not deliver(place, strategy, event)]
    assert not left


@on_both
@of_each
def test_an_event_that_comes_again_is_applied_once(
    place: Place, strategy: Strategy, request: pytest.FixtureRequest
) -> None:
    """Twice in a row, many later, and at once from two consumers."""
    events = produced(1000 if request.config.getoption("--long") else 6)
    for event in events:
        assert deliver(place, strategy, event)
        if event.version == 2:
            assert deliver(place, strategy, event)
    assert deliver(place, strategy, events[0])
    last = Event(events[0].account, len(events) + 1, len(events) + 1)
    with ThreadPoolExecutor(2) as threads:
        assert all(threads.map(lambda _: deliver(place, strategy, last), range(2)))
    right = expected(strategy, [*events, last])
    if strategy is NOTHING:
        assert model(place, strategy)["account-0"] > right["account-0"], "it over-counts, and the suite sees it"
    else:
        assert model(place, strategy) == right


@pytest.mark.timeout(300)
@pytest.mark.parametrize("made", ["psycopg", "pysqlite"], indirect=True)
def test_killed_before_the_write_after_it_and_after_the_commit_it_is_applied_once(place: Place) -> None:
    run = template.run("-m", "tests.sql.projections.strategies", place.url, preloaded=MODULES, cwd=ROOT, timeout=280)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found.keys() == STRATEGIES.keys()
    for name, (codes, left) in found.items():
        assert codes == [-signal.SIGKILL] * 3, name
        right = expected(STRATEGIES[name], [Event("a", number, number) for number in (1, 2, 3)])
        if name == NOTHING.name:
            right["a"] += 2**3  # what was committed comes again
        assert left == right, name


@on_both
@of_each
def test_shuffled_within_their_streams(place: Place, strategy: Strategy) -> None:
    events = produced(8, accounts=2)
    shuffled = random.Random(4).sample(events, len(events))
    until_settled(place, strategy, shuffled)
    found = model(place, strategy)
    if strategy.disordered == "loses":
        assert all(found.get(account, 0) < amount for account, amount in ledger(events).items())
    else:
        assert found == expected(strategy, events)


@on_both
@of_each
def test_event_10_fails_and_11_is_there(place: Place, strategy: Strategy) -> None:
    """As docs/ordering.md has it: what skips 10 when it comes again has lost a delta, and nobody notices."""
    events = produced(11)
    ten, eleven = events[9:]
    until_settled(place, strategy, events[:9])
    assert not deliver(place, strategy, ten, fails=True)
    left = [event for event in (eleven, ten) if not deliver(place, strategy, event)]
    assert left == ([eleven] if "version" in strategy.name and strategy.disordered == "ledger" else [])
    until_settled(place, strategy, left)
    lost = ten.amount if strategy.disordered == "loses" else 0
    assert model(place, strategy)["account-0"] == expected(strategy, events)["account-0"] - lost


@on_both
def test_a_guard_of_one_position_for_all_streams_loses_what_others_commit_late(place: Place) -> None:
    """Of each stream the positions ascend; among streams they come as their transactions commit."""
    one, two, three = Event("a", 1, 1), Event("b", 1, 2), Event("a", 2, 3)
    for name, right in (
        ("position per projection, by hand", {"a": three.amount, "b": two.amount}),
        ("position per stream", ledger([one, two, three])),
    ):
        empty(place)
        for event in (two, one, three):
            assert deliver(place, STRATEGIES[name], event)
        assert model(place, STRATEGIES[name]) == right
