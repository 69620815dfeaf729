"""A table that can't be marked is published whole, in the order of its aggregates, however late a transaction commits.

In a look-back window what commits later than that lasts is lost: the same test, by the other order, loses it.

Rules of docs/contract.md: R12.34.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import MetaData, Row
from sqlalchemy.ext.asyncio import create_async_engine

from oncegate.cache.backoff import Backoff
from oncegate.sql import Relay
from oncegate.sql.outbox.tables import checkpoint_table
from oncegate.sql.reading import checkpoint
from oncegate.sql.reading.window import Window
from tests.sql.held import PATIENT
from tests.sql.outbox.events import EVENTS, MADE, ON_SQLITE, source
from tests.sql.outbox.sinks import Sink
from tests.sql.places import AsyncPlace, Place


class Clock:
    """Seconds, as they are set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def until_arrived(relay: Relay, sink: Sink, count: int) -> None:
    async with asyncio.timeout(PATIENT):
        while len(sink.arrived) < count:
            await relay.publish_batch()


async def drained(relay: Relay) -> None:
    while await relay.publish_batch():
        pass


@asynccontextmanager
async def at_work(engine: Any, sink: Sink, **options: Any) -> AsyncIterator[tuple[Relay, Clock]]:
    """One relay that goes on, and its clock."""
    one, clock = source(engine, **options), Clock()
    one._window._clock = clock
    try:
        yield Relay(one, sink, batch=3), clock
    finally:
        await one.close()


@pytest.fixture
async def engine(place: Place) -> AsyncIterator[Any]:
    table = checkpoint_table(MetaData())
    empty = "TRUNCATE events, oncegate_checkpoint RESTART IDENTITY"

    def make() -> None:
        place.run(lambda session: table.create(session.connection(), checkfirst=True))
        for statement in [MADE, empty] if place.is_postgresql else [ON_SQLITE]:
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


async def written(engine: Any, *events: tuple[str | None, int]) -> None:
    """In a transaction of their own."""
    async with engine.begin() as connection:
        await write(connection, *events)


async def published(engine: Any, sink: Sink, **options: Any) -> list[tuple[str, int | None]]:
    """What arrives from the checkpoint on."""
    before, one = len(sink.arrived), source(engine, **options)
    relay = Relay(one, sink, batch=3)
    await drained(relay)
    await one.close()
    return [(each.aggregate, each.sequence) for each in sink.arrived[before:]]


@on_both
async def test_rows_are_published_once_and_the_checkpoint_is_behind_them(engine: Any) -> None:
    sink = Sink()
    await written(engine, *[("a", number) for number in range(1, 6)], ("b", 1), (None, 0))
    found = await published(engine, sink)
    assert sorted(found) == [("", None), *[("a", number) for number in range(1, 6)], ("b", 1)]
    assert sink.numbers()["a"] == [1, 2, 3, 4, 5]
    assert await published(engine, sink) == []
    await written(engine, ("a", 6))
    assert (await source(engine).measure()).rows == 1
    assert await published(engine, sink) == [("a", 6)]


@on_both
async def test_a_checkpoint_that_is_lost_or_set_back_publishes_again_under_the_same_keys(engine: Any) -> None:
    sink = Sink()
    await written(engine, ("a", 1), ("a", 2))
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
    await written(engine, ("a", 1), ("b", 1), ("a", 2))
    assert await published(engine, sink, pauses=Backoff(60, 60)) == [("b", 1)]
    sink.refuses = lambda _: False
    assert await published(engine, sink) == [("a", 1), ("a", 2)]
    assert await published(engine, sink) == []


@on_postgresql
async def test_a_row_whose_transaction_commits_late_is_not_missed(engine: Any) -> None:
    sink = Sink()
    async with engine.connect() as late:
        await write(late, ("a", 1))
        await written(engine, ("b", 1))
        assert await published(engine, sink) == [], "an open transaction may still put something before it"
        await late.commit()
    assert await published(engine, sink) == [("a", 1), ("b", 1)]


@on_postgresql
async def test_a_lower_number_that_is_not_ready_is_waited_for(engine: Any) -> None:
    sink = Sink()
    async with engine.connect() as first, engine.connect() as unrelated:
        await write(first, ("x", 1))  # T1 has its number
        await write(unrelated, ("y", 1))  # T2, open to the end
        await written(engine, ("a", 1))
        await write(first, ("a", 2))
        await first.commit()
        assert await published(engine, sink) == [("x", 1)], "number 2 is ready, and number 1 is not"
        await unrelated.commit()
    assert sorted(await published(engine, sink)) == [("a", 1), ("a", 2), ("y", 1)]
    assert sink.numbers()["a"] == [1, 2]
    assert await published(engine, sink) == [], "what was published ahead of its place isn't published there again"


@on_postgresql
async def test_one_relay_at_a_time_has_the_source(engine: Any) -> None:
    await written(engine, ("a", 1), ("a", 2))
    assert await published(engine, Sink()) == [("a", 1), ("a", 2)]
    first, second = source(engine), source(engine)
    await written(engine, ("a", 3))
    assert len(await first.take(10)) == 1
    assert await second.take(10) == []
    await second.let_go()
    await first.let_go()
    assert len(await second.take(10)) == 1
    await second.close()


@on_postgresql
@pytest.mark.parametrize(
    ("order", "seconds", "is_found"),
    [("tx", 601, True), (None, 599, True), (None, 607, False)],
    ids=["by transactions, after 10 minutes", "in the window, before", "in the window, after"],
)
async def test_what_commits_after_ten_minutes_is_lost_in_a_window_alone(
    engine: Any, order: str | None, seconds: float, is_found: bool
) -> None:
    sink = Sink()
    async with at_work(engine, sink, transaction=order) as (relay, clock), engine.connect() as late:
        await write(late, ("a", 1))
        await written(engine, ("b", 1))
        await drained(relay)
        await drained(relay)  # the window is read to its end again, and the place of the highest row noted
        clock.now = seconds
        await drained(relay)
        await drained(relay)
        await late.commit()
        await drained(relay)
        await drained(relay)
    assert ("a" in sink.numbers()) is is_found
    assert sink.numbers()["b"] == [1]


@on_both
async def test_a_window_is_read_again_and_what_is_published_skipped(engine: Any) -> None:
    sink = Sink()
    async with at_work(engine, sink, transaction=None) as (relay, _):
        async with engine.begin() as connection:
            await write(connection, *[(None, 0)] * 12)
            await connection.execute(EVENTS.delete().where(EVENTS.c.id.in_([3, 4, 9])))
        await drained(relay)
        assert [each.position for each in sink.arrived] == [1, 2, 5, 6, 7, 8, 10, 11, 12]
        always = "OVERRIDING SYSTEM VALUE " if engine.dialect.name == "postgresql" else ""
        async with engine.begin() as connection:  # such as gave their numbers back late
            await connection.exec_driver_sql(f"INSERT INTO events (id) {always}VALUES (9), (3)")
        await drained(relay)
        assert [each.position for each in sink.arrived[9:]] == [3, 9]
        assert (await relay._source.measure()).rows == 0
    assert await published(engine, sink, transaction=None) == [], "the next relay knows it by the checkpoint"


@pytest.mark.parametrize("place", ["aiosqlite"], indirect=True)
async def test_of_what_is_not_stored_the_next_relay_publishes_again(engine: Any) -> None:
    sink = Sink()
    async with engine.begin() as connection:
        await write(connection, *[(None, 0)] * 9)
        await connection.execute(EVENTS.delete().where(EVENTS.c.id.in_([2, 4, 6, 8])))
    await published(engine, sink, kept=2)
    assert await published(engine, sink, kept=2) == [("", None)] * 3
    assert [each.key for each in sink.arrived[5:]] == ["event-1", "event-3", "event-5"]


@pytest.mark.parametrize("place", ["aiosqlite"], indirect=True)
async def test_too_many_runs_hold_the_source_up_until_the_window_has_gone_on(
    engine: Any, caplog: pytest.LogCaptureFixture
) -> None:
    sink = Sink()
    async with engine.begin() as connection:
        await write(connection, *[(None, 0)] * 11)
        await connection.execute(EVENTS.delete().where(EVENTS.c.id.in_([2, 4, 6, 8, 10])))
    async with at_work(engine, sink, recent=3, kept=3) as (relay, clock):
        for clock.now in (0, 1):
            await drained(relay)
            assert [each.position for each in sink.arrived] == [1, 3, 5]
        await relay._source.measure()
        assert "events is held up" in caplog.text
        for clock.now in (700, 701):
            await drained(relay)
        assert [each.position for each in sink.arrived] == [1, 3, 5, 7, 9, 11]


def test_a_window_never_passes_what_is_not_confirmed() -> None:
    clock = Clock()
    window = Window(600, 2, 10, 10, clock)
    row: Any = None
    places = [checkpoint.Place(0, number, True, row) for number in (1, 2, 3)]

    def read(_: int, position: int, most: int) -> list[checkpoint.Place]:
        return [place for place in places if place.position > position][:most]

    for clock.now in (0, 700, 1400, 2100):
        for _ in range(2):
            assert 1 in {place.position for place in window.rows(read, 9)}
            window.confirmed({2, 3})
    window.confirmed({1})
    for clock.now in (2800, 3500, 4200):
        for _ in range(2):
            assert window.rows(read, 9) == []
    assert (window.place, window.published) == ((0, 3), 0)


@on_both
async def test_after_its_last_attempt_a_row_is_passed_with_an_error_in_the_log(
    engine: Any, caplog: pytest.LogCaptureFixture
) -> None:
    sink = Sink()
    sink.refuses = lambda each: each.sequence == 1
    await written(engine, ("a", 1), ("a", 2))
    async with at_work(engine, sink, attempts=2, pauses=Backoff(1e-9, 1e-9)) as (relay, _):
        await until_arrived(relay, sink, 1)
    assert sink.numbers() == {"a": [2]}
    assert "given up after 2 refusals" in caplog.text
    assert await published(engine, sink) == []


@on_both
async def test_lower_numbers_are_looked_for_in_their_own_aggregate_alone(engine: Any) -> None:
    """Not up to the highest number of another one: that would be the whole table, for each batch."""
    sink, found = Sink(), 0
    await written(engine, ("b", 1), ("a", 99), *[("b", number) for number in range(2, 30)])
    one = source(engine, transaction=None)
    place = one._reader._place

    def counted(row: Row[Any]) -> Any:
        nonlocal found
        found += 1
        return place(row)

    one._reader._place = counted  # type: ignore[method-assign]  # counts the rows that come out of the database
    await Relay(one, sink, batch=2).publish_batch()
    await one.close()
    assert found == 2


@on_postgresql
async def test_what_contradicts_itself_is_refused(engine: Any) -> None:
    with pytest.raises(ValueError, match="together"):
        source(engine, sequence=None)
    with pytest.raises(ValueError, match="no column"):
        source(engine, position="place")
    for wrong in ({"look_back": 0}, {"page": 0}, {"kept": 10_001}, {"attempts": -1}, {"stall_limit": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            source(engine, **wrong)
    with pytest.raises(ValueError, match="page is 201"):
        Relay(source(engine, transaction=None, page=201), Sink())
