"""A projection applies each committed event once, in its aggregate's order, with its position in the same transaction.

Rules of docs/contract.md: R12.50.
"""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import JSON, BigInteger, Column, MetaData, Table, Text, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from oncegate.sql import OutboxMessage, Projection, ProjectionMisused, Relay, TableSource
from oncegate.sql.outbox.tables import checkpoint_table
from testing.waiting import until
from tests.sql.held import PATIENT
from tests.sql.outbox.sinks import Sink, ended
from tests.sql.places import AsyncPlace, Place, SyncPlace
from tests.sql.projections.accounts import (
    ADD,
    EVENTS,
    Ledger,
    add,
    applied,
    applied_count,
    balances,
    engine_of,
    position,
    projection,
)

on_postgresql = pytest.mark.parametrize("place", ["asyncpg", "psycopg"], indirect=True)
on_both = pytest.mark.parametrize("place", ["asyncpg", "pysqlite"], indirect=True)


@asynccontextmanager
async def at_work(place: Place, *projections: Projection, **options: Any) -> AsyncIterator[None]:
    engine = engine_of(place)
    runners = [each.runner(engine, **options) for each in projections]
    tasks = [asyncio.create_task(runner.run()) for runner in runners]
    try:
        yield
    finally:
        for runner in runners:
            runner.stop()
        await asyncio.gather(*tasks)
        await ended(engine)


async def caught_up(place: Place, ledger: Ledger) -> None:
    await until(lambda: applied_count(place) >= ledger.count, "all events are applied")


async def test_events_are_applied_once_in_order_and_those_that_come_later_too(place: Place) -> None:
    ledger, balance = Ledger(), projection(place, batch=3)
    await ledger.produced(place, *["a", "b", "a", "c"] * 3)
    async with at_work(place, balance):
        await caught_up(place, ledger)
        await ledger.produced(place, "a", "d")
        await caught_up(place, ledger)
    assert (balances(place), applied(place)) == (ledger.balances(), ledger.numbers())
    async with at_work(place, projection(place)):  # the next process
        await ledger.produced(place, "a")
        await caught_up(place, ledger)
    assert (balances(place), applied(place)) == (ledger.balances(), ledger.numbers())


@on_postgresql
async def test_what_an_open_transaction_holds_up_is_applied_and_nothing_passed(place: Place) -> None:
    """Held open over several batches; its positions are the lowest, and are applied last: no guard by position may follow."""
    ledger = Ledger()
    order: list[int] = []

    def work(event: Any, session: Session) -> None:
        order.append(event.position)
        add(event, session)

    late = SyncPlace(place.url.replace("asyncpg", "psycopg"))
    with Session(late.engine) as early, Session(late.engine) as open_one:
        early.execute(text("SELECT pg_current_xact_id()"))  # older than the open one, and writes later
        ledger.write(open_one, ["late"])
        await ledger.produced(place, "behind")
        async with at_work(place, projection(place, work=work, batch=1)):
            ledger.write(early, ["early", "early"])
            early.commit()
            await until(lambda: applied_count(place) == 2, "what is older than the open one is applied")
            await ledger.produced(place, "behind")
            assert "late" not in applied(place)
            assert "behind" not in applied(place), "it began after the open one"
            open_one.commit()
            await caught_up(place, ledger)
    assert (balances(place), applied(place)) == (ledger.balances(), ledger.numbers())
    assert order == [3, 4, 1, 2, 5], "the order of transactions, in which positions do not ascend"


async def test_an_event_that_fails_is_found_waited_for_and_passed_by_nothing(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    ledger, fails, watch = Ledger(), True, Watched()
    await ledger.produced(place, "a", "a", "b", "bad", "a", "b")

    def work(event: Any, session: Session) -> None:
        add(event, session)
        if fails and event.account == "bad":
            raise LookupError("no such account\nsecret")

    async with at_work(place, projection(place, work=work), watch=watch):
        await until(lambda: getattr(position(place), "attempts", 0) >= 2, "it fails, and is tried again")
        assert applied(place) == {"a": [1, 2], "b": [1]}, "what is before it is applied, and nothing behind it"
        row = position(place)
        assert (row.failed_position, row.reason) == (4, "LookupError: no such account")
        assert row.failed_at is not None
        since = row.failed_at
        await ledger.produced(place, "c")
        await until(lambda: position(place).attempts >= 3, "again")
        assert position(place).failed_at == since
        fails = False
        await caught_up(place, ledger)
    assert (balances(place), applied(place)) == (ledger.balances(), ledger.numbers())
    row = position(place)
    assert (row.failed_at, row.failed_position, row.attempts, row.reason) == (None, None, 0, None)
    assert "balance.v1 stands at position 4 since" in caplog.text
    assert "secret" not in caplog.text
    assert any(stuck == 4 and since for _, _, stuck, since in watch.measured)
    assert sum(watch.applied) == ledger.count


class Watched:
    """A watch that keeps what it is notified of."""

    def __init__(self) -> None:
        self.applied: list[int] = []
        self.measured: list[tuple[str, int, int | None, float | None]] = []

    def events_applied(self, projection: str, count: int) -> None:
        self.applied.append(count)

    def projection_measured(
        self, projection: str, behind: int, stuck_at: int | None, stuck_since: float | None
    ) -> None:
        self.measured.append((projection, behind, stuck_at, stuck_since))


@on_both
@pytest.mark.parametrize("ends", ["commits", "executes COMMIT"])
async def test_a_handler_can_t_commit(place: Place, ends: str) -> None:
    ledger = Ledger()
    await ledger.produced(place, "a")

    def work(event: Any, session: Session) -> None:
        add(event, session)
        session.commit() if ends == "commits" else session.execute(text("COMMIT"))

    async with at_work(place, projection(place, work=work)):
        await until(lambda: getattr(position(place), "attempts", 0), "it is refused")
        assert "InboxMisused" in position(place).reason
    assert balances(place) == {}


async def test_a_batch_ends_after_so_many_events_and_after_so_long(place: Place) -> None:
    ledger, watch, slow = Ledger(), Watched(), Watched()
    await ledger.produced(place, *["a"] * 7)
    async with at_work(place, projection(place, batch=5, batch_seconds=60), watch=watch):
        await caught_up(place, ledger)
        await until(lambda: watch.applied == [5, 2], "two batches")
    async with at_work(place, projection(place, "other", batch_seconds=1e-6), watch=slow):
        await until(lambda: slow.applied == [1] * 7, "each event alone")


@on_both
async def test_a_handler_of_a_list_gets_rows_of_a_batch_and_fewer_where_it_is_slow(place: Place) -> None:
    ledger, watch = Ledger(), Watched()
    await ledger.produced(place, *["a", "b"] * 6)
    balance = Projection("balance.v1", EVENTS, aggregate="account", sequence="version", batch=4, batch_seconds=1e-6)

    def work(events: Any, session: Session) -> None:
        assert isinstance(events, list)
        for event in events:
            add(event, session)

    if isinstance(place, AsyncPlace):

        @balance.apply(batch=True)
        async def apply(events: Any, session: AsyncSession) -> None:
            await session.run_sync(lambda sync: work(events, sync))

    else:
        balance.apply(batch=True)(work)
    async with at_work(place, balance, watch=watch):
        await caught_up(place, ledger)
        await until(lambda: sum(watch.applied) == 12, "all")
    assert watch.applied[:2] == [4, 1], "a list is not cut off: the next one is shorter"
    assert (balances(place), applied(place)) == (ledger.balances(), ledger.numbers())


@on_postgresql
async def test_the_planner_s_settings_are_the_database_s_own_in_the_handler(place: Place) -> None:
    ledger, seen = Ledger(), []
    await ledger.produced(place, "a")
    query = text(
        "SELECT current_setting('enable_seqscan'), current_setting('enable_bitmapscan'), current_setting('jit')"
    )

    def work(event: Any, session: Session) -> None:
        seen.append(tuple(session.execute(query).one()))
        add(event, session)

    own = tuple(place.in_a_thread(lambda: place.run(lambda session: session.execute(query).one())))
    assert own[0] == "on"
    async with at_work(place, projection(place, work=work)):
        await caught_up(place, ledger)
    assert seen == [own]


async def test_rows_have_the_types_of_the_table_s_columns(place: Place) -> None:
    kinds: list[Any] = []
    table = Table("events", MetaData(), *[Column(name, BigInteger) for name in ("position", "version", "amount")])
    table.append_column(Column("account", JSON))
    table.append_column(Column("transaction", Text))
    place.in_a_thread(lambda: place.execute("INSERT INTO events (version, amount) VALUES (1, 2)"))
    if place.is_postgresql:
        place.in_a_thread(lambda: place.execute("ALTER TABLE events ALTER account TYPE jsonb USING account\\:\\:jsonb"))
    place.in_a_thread(lambda: place.execute("UPDATE events SET account = '{\"a\"\\: [1]}'"))
    made = Projection("typed", table)

    def work(event: Any, session: Session) -> None:
        kinds.append((event.account, event.amount))

    if isinstance(place, AsyncPlace):

        @made.apply
        async def apply(event: Any, session: AsyncSession) -> None:
            work(event, session.sync_session)

    else:
        made.apply(work)
    async with at_work(place, made):
        await until(lambda: kinds, "it is applied")
    assert kinds == [({"a": [1]}, 2)]


async def test_projections_go_beside_each_other_and_beside_a_relay(place: Place) -> None:
    """On SQLite, too: of sources one is at work on a database, and a batch of a projection begins with the write lock."""
    ledger, sink = Ledger(), Sink()
    place.in_a_thread(
        lambda: place.run(lambda session: checkpoint_table(MetaData()).create(session.connection(), checkfirst=True))
    )
    place.in_a_thread(lambda: place.execute("DELETE FROM oncegate_checkpoint"))
    order: list[str] = []

    def noting(name: str) -> Any:
        def work(event: Any, session: Session) -> None:
            session.execute(ADD, {"account": f"{name}/{event.account}", "amount": event.amount})
            order.append(name)

        return work

    names = ("one", "two", "three")
    projections = [projection(place, name, noting(name), batch=4) for name in names]
    for _ in range(4):
        await ledger.produced(place, "a", "b", "c")
    engine = engine_of(place)
    source = TableSource(
        engine, EVENTS, lambda row: OutboxMessage(None, "events", str(row.position), b""), name="relay",
        aggregate="account", sequence="version", page=5,
    )  # fmt: skip
    async with Relay(source, sink, batch=5).running(), at_work(place, *projections):
        await ledger.produced(place, "a", "b", "d")
        await until(lambda: len(order) == 3 * ledger.count and len(sink.arrived) == ledger.count, "all are whole")
    await ended(engine)
    expected = {f"{name}/{account}": amount for name in names for account, amount in ledger.balances().items()}
    assert balances(place) == expected
    assert sink.numbers() == ledger.numbers()


@pytest.mark.parametrize("place", ["psycopg"], indirect=True)
async def test_a_slow_one_holds_up_no_other_one(place: Place) -> None:
    """In the midst of its first batch, which has a transaction open, others apply all that was committed before that."""
    ledger, held, entered = Ledger(), threading.Event(), threading.Event()
    await ledger.produced(place, *["a", "b"] * 4)

    def slow(event: Any, session: Session) -> None:
        session.execute(ADD, {"account": f"slow/{event.account}", "amount": event.amount})
        entered.set()
        assert held.wait(PATIENT)

    async with at_work(place, projection(place, "slow", slow)):
        await until(entered.is_set, "it is in the midst of a batch")
        async with at_work(place, projection(place)):
            await caught_up(place, ledger)
        held.set()
        await until(lambda: balances(place).get("slow/a") == ledger.balances()["a"], "it goes on")


async def test_what_can_t_be_is_refused(place: Place) -> None:
    with pytest.raises(ValueError, match="name of a projection"):
        Projection("no name", EVENTS)
    with pytest.raises(ValueError, match="no column when"):
        Projection("a", EVENTS, position="when")
    with pytest.raises(ValueError, match="together"):
        Projection("a", EVENTS, aggregate="account")
    with pytest.raises(ValueError, match="batch is 1 or more"):
        Projection("a", EVENTS, batch=0)
    with pytest.raises(TypeError, match="Table"):
        Projection("a", "events")  # type: ignore[arg-type]  # refused
    engine, made = engine_of(place), projection(place)
    with pytest.raises(ValueError, match="no handler"):
        Projection("a", EVENTS).runner(engine)
    with pytest.raises(ValueError, match="has a handler"):
        made.apply(add)
    other: Any = AsyncPlace("sqlite+aiosqlite://") if isinstance(place, SyncPlace) else SyncPlace("sqlite://")
    of_the_other_kind = projection(other)
    with pytest.raises(TypeError, match="an AsyncEngine is for a coroutine function"):
        of_the_other_kind.runner(engine)
    if place.is_postgresql:
        with pytest.raises(ValueError, match="transaction names a column"):
            projection(place, transaction=None).runner(engine)
    moved = Projection("balance.v1", EVENTS.to_metadata(MetaData(), name="others"))
    moved.apply(_nothing if isinstance(place, AsyncPlace) else lambda _event, _session: None)
    async with at_work(place, made):
        await until(lambda: position(place), "it has begun")
    with pytest.raises(ProjectionMisused, match="give it another name, or reset it"):
        async with moved.running(engine):
            await asyncio.sleep(0)
    place.in_a_thread(lambda: place.execute("DROP TABLE oncegate_projection"))
    with pytest.raises(ProjectionMisused, match="oncegate projections create"):
        async with made.running(engine):
            await asyncio.sleep(0)
    await ended(engine)


async def _nothing(_event: Any, _session: AsyncSession) -> None:
    pass
