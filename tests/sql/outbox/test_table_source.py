"""A table that can't be marked is published whole, in the order of its aggregates, however late a transaction commits.

Rules of docs/contract.md: R12.34.
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import BigInteger, Column, MetaData, Row, Table, Text
from sqlalchemy.ext.asyncio import create_async_engine

from oncegate.cache.backoff import Backoff
from oncegate.sql import OutboxMessage, Relay, TableSource
from oncegate.sql.outbox.tables import checkpoint_table
from tests.sql.outbox.sinks import Sink
from tests.sql.places import AsyncPlace, Place

EVENTS = Table(
    "events",
    MetaData(),
    Column("id", BigInteger),
    Column("tx", Text),
    Column("account", Text),
    Column("version", BigInteger),
)
MADE = """CREATE TABLE IF NOT EXISTS events (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, tx xid8 NOT NULL DEFAULT pg_current_xact_id(),
    account text, version bigint)"""
ON_SQLITE = "CREATE TABLE events (id INTEGER PRIMARY KEY AUTOINCREMENT, tx text, account text, version bigint)"


def message(row: Row[Any]) -> OutboxMessage:
    return OutboxMessage(None, "events", f"event-{row.id}", b"")


def source(engine: Any, **options: Any) -> TableSource:
    columns = {"position": "id", "transaction": "tx", "aggregate": "account", "sequence": "version"}
    return TableSource(engine, EVENTS, message, name="events", **columns | options)


@pytest.fixture
async def engine(place: Place) -> AsyncIterator[Any]:
    table = checkpoint_table(MetaData())

    def make() -> None:
        place.run(lambda session: table.create(session.connection(), checkfirst=True))
        for statement in [MADE, "TRUNCATE events, oncegate_checkpoint"] if place.is_postgresql else [ON_SQLITE]:
            place.execute(statement)

    place.in_a_thread(make)
    assert isinstance(place, AsyncPlace)
    engine = create_async_engine(place.url)
    yield engine
    await engine.dispose()


on_both = pytest.mark.parametrize("place", ["asyncpg", "aiosqlite"], indirect=True)
on_postgresql = pytest.mark.parametrize("place", ["asyncpg"], indirect=True)


async def write(connection: Any, *events: tuple[str | None, int]) -> None:
    for account, version in events:
        await connection.execute(EVENTS.insert().values(account=account, version=version))


async def published(engine: Any, sink: Sink, **options: Any) -> list[tuple[str, int | None]]:
    """What arrives from the checkpoint on."""
    before, one = len(sink.arrived), source(engine, **options)
    relay = Relay(one, sink, batch=3)
    while await relay.publish_batch():
        pass
    await one.close()
    return [(each.aggregate, each.sequence) for each in sink.arrived[before:]]


@on_both
async def test_rows_are_published_once_and_the_checkpoint_is_behind_them(engine: Any) -> None:
    sink = Sink()
    async with engine.begin() as connection:
        await write(connection, *[("a", number) for number in range(1, 6)], ("b", 1), (None, 0))
    found = await published(engine, sink)
    assert sorted(found) == [("", None), *[("a", number) for number in range(1, 6)], ("b", 1)]
    assert sink.numbers()["a"] == [1, 2, 3, 4, 5]
    assert await published(engine, sink) == []
    async with engine.begin() as connection:
        await write(connection, ("a", 6))
    assert (await source(engine).measure()).rows == 1
    assert await published(engine, sink) == [("a", 6)]


@on_both
async def test_a_checkpoint_that_is_lost_or_set_back_publishes_again_under_the_same_keys(engine: Any) -> None:
    sink = Sink()
    async with engine.begin() as connection:
        await write(connection, ("a", 1), ("a", 2))
    await published(engine, sink)
    async with engine.begin() as connection:
        await connection.exec_driver_sql("DELETE FROM oncegate_checkpoint")
    assert await published(engine, sink) == [("a", 1), ("a", 2)]
    keys = [each.key for each in sink.arrived]
    assert keys[:2] == keys[2:]


@on_both
async def test_what_is_refused_waits_and_others_go_on(engine: Any) -> None:
    sink = Sink()
    sink.refuses = lambda each: each.aggregate == "a"
    async with engine.begin() as connection:
        await write(connection, ("a", 1), ("b", 1), ("a", 2))
    assert await published(engine, sink, pauses=Backoff(60, 60)) == [("b", 1)]
    sink.refuses = lambda _: False
    assert await published(engine, sink) == [("a", 1), ("a", 2)]
    assert await published(engine, sink) == []


@on_postgresql
async def test_a_row_whose_transaction_commits_late_is_not_missed(engine: Any) -> None:
    sink = Sink()
    async with engine.connect() as late:
        await write(late, ("a", 1))
        async with engine.begin() as connection:
            await write(connection, ("b", 1))
        assert await published(engine, sink) == [], "an open transaction may still put something before it"
        await late.commit()
    assert await published(engine, sink) == [("a", 1), ("b", 1)]


@on_postgresql
async def test_a_lower_number_that_is_not_ready_is_waited_for(engine: Any) -> None:
    sink = Sink()
    async with engine.connect() as first, engine.connect() as unrelated:
        await write(first, ("x", 1))  # T1 has its number
        await write(unrelated, ("y", 1))  # T2, open to the end
        async with engine.begin() as third:
            await write(third, ("a", 1))
        await write(first, ("a", 2))
        await first.commit()
        assert await published(engine, sink) == [("x", 1)], "number 2 is ready, and number 1 is not"
        await unrelated.commit()
    assert sorted(await published(engine, sink)) == [("a", 1), ("a", 2), ("y", 1)]
    assert sink.numbers()["a"] == [1, 2]
    assert await published(engine, sink) == [], "what was published ahead of its place isn't published there again"


@on_postgresql
async def test_one_relay_at_a_time_has_the_source(engine: Any) -> None:
    async with engine.begin() as connection:
        await write(connection, ("a", 1), ("a", 2))
    assert await published(engine, Sink()) == [("a", 1), ("a", 2)]
    first, second = source(engine), source(engine)
    async with engine.begin() as connection:
        await write(connection, ("a", 3))
    assert len(await first.take(10)) == 1
    assert await second.take(10) == []
    await second.let_go()
    await first.let_go()
    assert len(await second.take(10)) == 1
    await second.close()


@on_postgresql
async def test_what_contradicts_itself_is_refused(engine: Any) -> None:
    with pytest.raises(ValueError, match="together"):
        source(engine, sequence=None)
    with pytest.raises(ValueError, match="no column"):
        source(engine, position="place")
