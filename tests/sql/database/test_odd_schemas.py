"""A schema may have any name: each statement about its tables finds it, by each driver."""

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import MetaData, NullPool, create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from oncegate.sql import Inbox, Outbox, Relay, Sequences, TableSource
from oncegate.sql.inbox import stats
from oncegate.sql.inbox.cleanup import Retention, forget
from oncegate.sql.inbox.create import create as create_tables
from oncegate.sql.marking.table import inbox_table
from oncegate.sql.outbox.sources.outbox_source import OutboxSource
from testing.command_line import invoke
from testing.postgresql import PostgreSQLServer
from tests.sql.handlers.parking import consume, deliveries, failing
from tests.sql.outbox.events import EVENTS, MADE, message
from tests.sql.outbox.sinks import Sink
from tests.sql.places import EFFECTS_TABLE, place_of

OLD = datetime(2020, 1, 1, tzinfo=UTC)
SCHEMAS = ["100%", "%s", "a:b", 'Shop "x"', "a b%(c)s", "{x}"]


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
@pytest.mark.parametrize("schema", SCHEMAS)
def test_everything_works_in_a_schema_of_any_name(
    postgresql: PostgreSQLServer, schema: str, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = postgresql.database()
    postgresql.execute(f'CREATE SCHEMA "{schema.replace(chr(34), chr(34) * 2)}"', name)
    postgresql.execute(EFFECTS_TABLE, name)
    postgresql.execute(MADE, name)
    place = place_of(postgresql.url(name, driver))
    where = ("--database", place.url, "--schema", schema)
    for group in ("inbox", "outbox"):
        assert invoke(group, "create", *where).stdout == "created\n"

    orders = Outbox("orders", schema=schema)

    def add(session: Any) -> None:
        orders.add(session, "payments", b"1", aggregate="a")
        orders.add(session, "payments", b"1")
        Sequences("invoices", schema=schema).next(session, "a")

    place.run(add)
    place.execute("INSERT INTO events (account, version) VALUES ('a', 1)")
    assert len(json.loads(invoke("outbox", "list", "--json", *where).stdout)["messages"]) == 2
    sink = Sink()

    async def relay() -> None:
        create = create_async_engine if driver == "asyncpg" else create_engine
        engine = create(place.url, poolclass=NullPool)
        columns: dict[str, Any] = {"position": "id", "transaction": "tx", "aggregate": "account", "sequence": "version"}
        events = TableSource(engine, EVENTS, message, name="events", schema=schema, **columns)
        for each in (OutboxSource(engine, schema=schema, keep=1), events):
            await Relay(each, sink).publish_batch()
            await each.measure()
            await each.close()

    asyncio.run(relay())
    assert len(sink.arrived) == 3

    ledger = Inbox("ledger", order="contiguous", schema=schema)
    consume(place.handler(ledger, failing("a001")[1]), *deliveries(2), *deliveries(1))
    assert "a  waits for 1" in invoke("inbox", "waiting", *where).stdout
    assert invoke("inbox", "skip", "ledger", "a", "--sequence", "1", "--reason", "x", *where).returncode == 0
    assert place.deliver(Inbox("billing", schema=schema), "k").first
    assert not place.deliver(Inbox("billing", schema=schema), "k").first
    for most in (stats.MOST_COUNTED_BYTES, -1):
        monkeypatch.setattr(stats, "MOST_COUNTED_BYTES", most)
        assert invoke("inbox", "stats", *where).returncode == 0
    table = inbox_table(MetaData(), schema)
    place.run(lambda session: session.execute(table.update().values(received_at=OLD)))
    engine = create_engine(postgresql.url(name, "psycopg"), poolclass=NullPool)
    assert asyncio.run(forget(engine, table, Retention(), lead=0)).pruned == 1
    done = invoke("check", *where)
    assert (done.returncode, done.stderr) == (0, "")


def test_tables_are_created_where_an_event_loop_runs(postgresql: PostgreSQLServer) -> None:
    url = postgresql.url(postgresql.database(), "asyncpg")

    async def made() -> bool:
        return create_tables(url, None)

    assert asyncio.run(made())
    assert not asyncio.run(made())


def test_no_line_for_people_has_a_class_s_name(postgresql: PostgreSQLServer) -> None:
    name = postgresql.database()
    url = postgresql.url(name, "asyncpg")
    invoke("outbox", "create", "--database", url)
    postgresql.execute("ALTER TABLE oncegate_outbox RENAME COLUMN refusal TO other", name)
    done = invoke("outbox", "list", "--database", url)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "refusal does not exist" in done.stderr
    assert "<class" not in done.stderr
