"""Relays are killed (SIGKILL) at named points, or stand still (SIGSTOP): nothing is lost, and each aggregate is in order.

The oracle is what was added. What is published twice has its key and its number.

Rules of docs/contract.md: R12.32.
"""

import asyncio
import signal
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import MetaData

from oncegate.sql import OutboxSource, Relay
from oncegate.sql.outbox.publishing import RedisStreams
from oncegate.sql.outbox.tables import checkpoint_table
from testing.command_line import forked, invoke, running
from testing.servers import RedisServer
from testing.template import ROOT, Forked
from testing.waiting import wait_until
from tests.sql.conftest import PRELOADED
from tests.sql.held import PATIENT
from tests.sql.outbox.events import ON_SQLITE
from tests.sql.outbox.relays import AFTER, BEFORE, POINTS, REMOVED, STILL
from tests.sql.outbox.sinks import added, ended, engine_of, waiting
from tests.sql.places import Place

ADDED = ["a", "a", "b", "a", "b", "a", "c", "a"]


@pytest.fixture(scope="module")
def streams() -> Any:
    with RedisServer() as server:
        yield server


def arrived(streams: RedisServer) -> list[tuple[str, int, str]]:
    """Aggregate, number and key of each entry, in their order."""
    with streams.client() as client:
        entries: Any = client.xrange("payments")
    return [(each[b"aggregate"].decode(), int(each[b"sequence"]), each[b"key"].decode()) for _, each in entries]


def first_time(entries: list[tuple[str, int, str]]) -> dict[str, list[int]]:
    """The numbers of each aggregate as a consumer would apply them that skips what it has seen, by the key."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    keys: set[str] = set()
    for aggregate, number, key in entries:
        if key not in keys:
            found[aggregate].append(number)
        keys.add(key)
    return dict(found)


def relay(place: Place, streams: RedisServer, point: str) -> "subprocess.Popen[str]":
    command = ["-m", "tests.sql.outbox.relays", place.url, streams.url, point]
    return Forked(*command, preloaded=PRELOADED, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def drained(place: Place, streams: RedisServer) -> None:
    """What a relay does that comes next, until nothing waits."""

    async def run() -> None:
        engine, publish = engine_of(place), RedisStreams(streams.url, timeout=PATIENT)
        source = OutboxSource(engine)
        while await Relay(source, publish).publish_batch():
            pass
        await source.close()
        await publish.close()
        await ended(engine)

    asyncio.run(run())


def prepared(place: Place, streams: RedisServer) -> None:
    streams.command("DEL", "payments")
    added(place, *ADDED)


EXPECTED = {"a": [1, 2, 3, 4, 5], "b": [1, 2], "c": [1]}


@pytest.mark.parametrize("place", ["asyncpg", "pysqlite"], indirect=True)
def test_wherever_it_dies_everything_arrives_in_order(place: Place, streams: RedisServer) -> None:
    for point in POINTS if place.is_postgresql else [AFTER]:
        prepared(place, streams)
        dead = relay(place, streams, point)
        dead.communicate(timeout=60)
        assert dead.returncode == -signal.SIGKILL
        before = arrived(streams)
        assert len(before) in {BEFORE: range(2, 5), AFTER: range(3, 6), REMOVED: [8]}[point]
        assert len(waiting(place)) == 8
        drained(place, streams)  # at once: a dead one lets go
        assert first_time(arrived(streams)) == EXPECTED
        assert len(arrived(streams)) == 8 + len(before)
        assert waiting(place) == []
        place.execute("DELETE FROM oncegate_sequence")


@pytest.mark.parametrize("place", ["asyncpg"], indirect=True)
def test_one_that_stands_still_loses_what_it_has_taken_and_sends_nothing_more(
    place: Place, streams: RedisServer, request: pytest.FixtureRequest
) -> None:
    prepared(place, streams)
    still = relay(place, streams, STILL)
    request.addfinalizer(still.kill)
    status = f"/proc/{still.pid}/stat"
    wait_until(lambda: Path(status).read_text().rpartition(")")[2].split()[0] == "T", "it stands still")
    before = arrived(streams)
    assert 0 < len(before) < 8
    wait_until(
        lambda: (
            not place.execute("SELECT 1 FROM pg_stat_activity WHERE state LIKE 'idle in%' AND query LIKE '%heads%'")
        ),
        "PostgreSQL has ended its transaction",
    )
    drained(place, streams)
    assert (first_time(arrived(streams)), waiting(place)) == (EXPECTED, [])
    count = len(arrived(streams))
    still.send_signal(signal.SIGCONT)
    still.communicate(timeout=60)
    assert first_time(arrived(streams)) == EXPECTED
    late = arrived(streams)[count:]
    assert set(late) <= set(arrived(streams)[:count]), "what it sent late has its old key and number"


@pytest.mark.parametrize("place", ["psycopg"], indirect=True)
def test_the_command_publishes_and_ends_on_sigterm(place: Place, streams: RedisServer) -> None:
    prepared(place, streams)
    options = ["--database", place.url, "--to", streams.url, "--log-format", "text", "--log-every", "0.2"]
    with running("relay", *options) as process:
        process.wait_for("published 8,")
        assert waiting(place) == []
        assert process.stop() == 0
    assert "the relay has stopped" in process.output
    assert first_time(arrived(streams)) == EXPECTED


@pytest.mark.parametrize("place", ["aiosqlite"], indirect=True)
def test_the_command_publishes_a_table_of_events_and_check_shows_how_far(place: Place, streams: RedisServer) -> None:
    place.execute(ON_SQLITE)
    place.run(lambda session: checkpoint_table(MetaData()).create(session.connection()))
    place.execute("INSERT INTO events (account, version) VALUES ('a', 1), ('a', 2)")
    options = ["--database", place.url, "--source", "tests.sql.outbox.events:source", "--to", streams.url]
    options += ["--log-format", "text", "--log-every", "0.2"]
    with forked("relay", *options) as process:
        process.wait_for("0 rows wait.*published 2,")
        assert process.stop() == 0
    with streams.client() as client:
        entries: Any = client.xrange("events")
    assert [fields[b"key"] for _, fields in entries] == [b"event-1", b"event-2"]
    assert "events is published up to position 0, and 1 positions" in invoke("check", "--database", place.url).stdout
