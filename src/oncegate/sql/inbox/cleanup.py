"""Forgets: deletes the markers that are older than a retention, by the database's clock, and keeps the instant up to which.

Strategy. The instant is committed first, as a row in the place of a message (oncegate.sql.marking.table), and the first marker
is deleted `LEAD_SECONDS` later: by then no statement runs that writes markers without having seen it (inbox.statements). Markers
go in batches, each in a short transaction of its own, which passes over what another one deletes: any number of these may run
beside each other, and nobody who writes a marker waits for them. Killed anywhere, it has forgotten no more than it has recorded.

What is due is searched once. On PostgreSQL that gives the blocks that it lies in, and each batch reads its own blocks alone: a
search for every batch would read again, each time, what the earlier ones have deleted. The index keeps a range of times for every
128 blocks, which never becomes narrower by itself: that of emptied blocks is dropped, and made anew by the next VACUUM.
"""

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import orjson
from sqlalchemy import (
    ColumnElement,
    Connection,
    DateTime,
    Engine,
    MetaData,
    Select,
    Table,
    Text,
    and_,
    bindparam,
    delete,
    func,
    literal,
    literal_column,
    select,
    text,
)
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from oncegate.sql.database.access import connected, in_transaction
from oncegate.sql.database.errors import InboxBusy, meaning
from oncegate.sql.database.terms import LONGEST_KEPT
from oncegate.sql.database.types import RecordId, insert_into, spelled, utc
from oncegate.sql.handlers.background import pause, repeat
from oncegate.sql.marking.statements import LEAD_SECONDS
from oncegate.sql.marking.table import ALL_CONSUMERS, NO_MESSAGE, inbox_table

log = logging.getLogger("oncegate.inbox")

BATCH_SIZE: Final = 5000
_OF_PART: Final = text("due.ctid >= CAST(:first AS tid) AND due.ctid < CAST(:end AS tid)").bindparams(
    bindparam("first", type_=Text()), bindparam("end", type_=Text())
)
_RANGE: Final = 128
"""Blocks that a BRIN index has one entry for, unless it was made otherwise."""
_DROP_RANGES: Final = text(
    "SELECT count(brin_desummarize_range(pg_class.oid, CAST(block AS bigint)))"
    " FROM pg_class, json_array_elements_text(CAST(:blocks AS json)) AS given (block)"
    " WHERE pg_class.oid = to_regclass(:index) AND pg_has_role(relowner, 'USAGE')"
    " AND relam = (SELECT oid FROM pg_am WHERE amname = 'brin')"
).bindparams(bindparam("index", type_=Text()), bindparam("blocks", type_=Text()))
_BLOCK: Final[Any] = literal_column("CAST((CAST(CAST(ctid AS text) AS point))[0] AS bigint)").label("block")


@dataclass(frozen=True, slots=True)
class Retention:
    """The age at which markers of ``consumers`` (all of them, if none are named) are forgotten, in ``seconds``.

    Raises ``ValueError`` for an age below 0, for one below ``redelivery_horizon`` (s; for as long a message may be delivered
    again), and for a ``batch_size`` below 1.
    """

    consumers: tuple[str, ...] = ()
    seconds: float = 604800.0
    redelivery_horizon: float = 86400.0
    batch_size: int = BATCH_SIZE

    def __post_init__(self) -> None:
        if not 0 <= self.seconds <= LONGEST_KEPT:
            raise ValueError("the retention is an age: 0 or more, and no more than 100 years")
        if not self.seconds >= self.redelivery_horizon:
            raise ValueError(
                f"a retention of {self.seconds / 3600:g} h is below the redelivery horizon of "
                f"{self.redelivery_horizon / 3600:g} h: a message that is delivered again would be taken for forgotten"
            )
        if self.batch_size < 1:
            raise ValueError("the batch size is 1 or more")


@dataclass(frozen=True, slots=True)
class Progress:
    """A cleanup's progress: ``pruned`` markers of those ``due``, which are older than ``until``."""

    due: int
    pruned: int
    until: datetime


def _ignore(_: Progress) -> None:
    pass


@dataclass(frozen=True, slots=True)
class _Part:
    """``rows`` that are due, in the table's blocks from ``first`` to ``last``; all of the table, where there are no blocks."""

    rows: int
    first: int = 0
    last: int = 0


def _parts(blocks: Iterable[tuple[int, int]], batch_size: int) -> Iterator[_Part]:
    """Blocks, each with the number of its rows, in parts of less than a batch, or of one block."""
    part: _Part | None = None
    for block, rows in blocks:
        if part and part.rows + rows < batch_size:
            part = _Part(part.rows + rows, part.first, block)
            continue
        if part:
            yield part
        part = _Part(rows, block, block)
    if part:
        yield part


async def forget(
    engine: AsyncEngine | Engine,
    table: Table,
    retention: Retention,
    *,
    keep_from: datetime | None = None,
    dry_run: bool = False,
    lead: float | None = None,
    progress: Callable[[Progress], None] = _ignore,
) -> Progress:
    """Forget once; what was done. What was marked after ``keep_from`` stays. ``dry_run``: only count.

    Raises SQLAlchemy's errors and ``OSError``. ``lead`` (s) is `LEAD_SECONDS`, and shorter in tests alone.
    """
    steps = _Steps(table, retention)
    until = await in_transaction(engine, steps.cutoff)
    if keep_from is not None:
        until = min(until, keep_from.astimezone(UTC))
    parts = await in_transaction(engine, lambda connection: steps.due(connection, until))
    done = Progress(sum(part.rows for part in parts), 0, until)
    progress(done)
    if dry_run or not parts:
        return done
    await in_transaction(engine, lambda connection: steps.record(connection, until))
    if engine.dialect.name == "postgresql":
        await asyncio.sleep(LEAD_SECONDS if lead is None else lead)
    for part in parts:
        pruned = retention.batch_size
        while pruned == retention.batch_size:  # else the rest, if any, is another one's
            began = time.monotonic()
            pruned = await in_transaction(engine, functools.partial(steps.delete, until=until, part=part))
            total = done.pruned + pruned
            done = Progress(max(done.due, total), total, until)
            progress(done)
            if engine.dialect.name == "sqlite":  # which has one writer at a time, and no queue for it
                await asyncio.sleep(time.monotonic() - began)
    if done.pruned and engine.dialect.name == "postgresql":
        await _drop_ranges(engine, table, parts)
    return done


async def _drop_ranges(engine: AsyncEngine | Engine, table: Table, parts: Sequence[_Part]) -> None:
    """Drop the ranges of the blocks that were emptied, if this role owns the table; not while a VACUUM is at work."""
    blocks = sorted({block for part in parts for block in (*range(part.first, part.last, _RANGE), part.last)})
    name = spelled(table, "postgresql", f"{table.name}_received_at")

    def drop(connection: Connection) -> None:
        connection.execute(text("SET LOCAL lock_timeout = '100ms'"))
        connection.execute(_DROP_RANGES, {"index": name, "blocks": orjson.dumps(blocks).decode()})

    try:
        await in_transaction(engine, drop)
    except SQLAlchemyError as error:
        if not isinstance(meaning(error, table.fullname), InboxBusy):
            raise


async def forget_in(database: str, schema: str | None, retention: Retention, **options: Any) -> Progress:
    """Call `forget`, with its options, in the database of a URL. Raises `NotDone`."""
    async with connected(database) as engine:
        return await forget(engine, inbox_table(MetaData(), schema), retention, **options)


async def keep_forgetting(
    engine: AsyncEngine | Engine,
    table: Table,
    retention: Retention,
    every: float,
    on_pruned: Callable[[int], None],
    measure: Callable[[Connection], object],
) -> None:
    """Forget about every so many seconds, for ever, and ``measure`` the table. What fails is logged, and done the next time.

    ``on_pruned`` is called with how many markers were deleted.
    """

    async def forget_once() -> None:
        done = await forget(engine, table, retention)
        on_pruned(done.pruned)
        await in_transaction(engine, measure)
        log.info("the inbox has forgotten %d messages, up to %s", done.pruned, done.until.isoformat())

    await pause(every)
    await repeat([forget_once], every, table.fullname, "the inbox could not be pruned")


class _Steps:
    """The transactions of `forget`."""

    def __init__(self, table: Table, retention: Retention) -> None:
        self._table = table
        self._retention = retention

    def cutoff(self, connection: Connection) -> datetime:
        clock = func.clock_timestamp if connection.dialect.name == "postgresql" else func.current_timestamp
        now: datetime = connection.scalars(select(clock(type_=DateTime(timezone=True)))).one()
        return utc(now) - timedelta(seconds=self._retention.seconds)

    def due(self, connection: Connection, until: datetime) -> list[_Part]:
        """The parts of the table that what is due lies in."""
        counted = select(func.count()).where(self._is_due(self._table, until))
        if connection.dialect.name == "sqlite":
            rows = connection.scalars(counted).one()
            return [_Part(rows)] if rows else []
        blocks = connection.execute(counted.add_columns(_BLOCK).group_by(_BLOCK).order_by(_BLOCK))
        return list(_parts(((block, rows) for rows, block in blocks), self._retention.batch_size))

    def record(self, connection: Connection, until: datetime) -> None:
        """Keep ``until`` as the instant up to which markers may be gone; a later one stays."""
        names = sorted(self._retention.consumers) or [ALL_CONSUMERS]
        rows = [{"received_at": until, "consumer": name, "message": NO_MESSAGE} for name in names]
        insert = insert_into(self._table, connection.dialect.name).values(rows)
        given = insert.excluded.received_at
        connection.execute(
            insert.on_conflict_do_update(
                index_elements=[self._table.c.consumer, self._table.c.message],
                set_={"received_at": given, "result": None},
                where=given > self._table.c.received_at,
            )
        )

    def delete(self, connection: Connection, until: datetime, part: _Part) -> int:
        """Delete one batch of ``part``; how many that were."""
        due = self._table.alias("due")
        is_postgresql = connection.dialect.name == "postgresql"
        place = "ctid" if is_postgresql else "rowid"
        there: Any = literal_column(f"due.{place}")
        found: Select[Any] = select(there).select_from(due).where(self._is_due(due, until))
        found = found.limit(self._retention.batch_size)
        chosen: ColumnElement[bool] = literal_column(place).in_(found)
        if is_postgresql:
            # Scans by tid; IN would read the whole table, for each batch.
            found = found.where(_OF_PART.bindparams(first=f"({part.first},0)", end=f"({part.last + 1},0)"))
            batch = found.with_for_update(skip_locked=True).scalar_subquery()
            chosen = literal_column(place) == func.any(func.array(batch))
        return connection.execute(delete(self._table).where(chosen)).rowcount

    def _is_due(self, table: Any, until: datetime) -> ColumnElement[bool]:
        due = and_(table.c.received_at < until, table.c.message != literal(NO_MESSAGE, RecordId()))
        names = self._retention.consumers
        return and_(due, table.c.consumer.in_(names)) if names else due
