"""The row of a projection: read, locked, moved and set back, in a transaction of the caller's."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final, TypeVar

import orjson
from sqlalchemy import Connection, Row, Table, bindparam, func, select, text, update
from sqlalchemy.exc import SQLAlchemyError

from oncegate.middleware.consumers.sql_interface import NotProcessed
from oncegate.sql.database.errors import InboxMisused, meaning, reason_of
from oncegate.sql.database.misuse import WRITTEN_BEFORE, check_commits_nothing, has_written
from oncegate.sql.database.sessions import AnySync
from oncegate.sql.database.terms import clock, limits_of, wait_limit
from oncegate.sql.database.types import DIALECTS, insert_into
from oncegate.sql.reading.checkpoint import Checkpoint
from oncegate.sql.reading.event_reader import PLANNED, PLANNER, EventColumns

Result = TypeVar("Result")

MOST_REASON: Final = 200
"""Characters of an error that are kept."""
_PLAN: Final = text(f"SELECT {PLANNED}")
_PLAN_BACK: Final = text("SELECT " + ", ".join(f"set_config('{name}', :{name}, true)" for name in PLANNER)).bindparams(
    *map(bindparam, PLANNER)
)


_READ: Final = ("transaction", "position", "ahead", "events", "attempts", "failed_at", "failed_position")


class ProjectionMisused(NotProcessed):
    """A projection is used in a way that can't hold its promise. Nothing was committed; the text says what to do."""


def events_as_json(events: Table, columns: EventColumns) -> str:
    """A table's events as they are kept for operators: its name, and the columns that its rows are in order by."""
    place = {"position": columns.position, "transaction": columns.transaction}
    return orjson.dumps({"table": events.name, "schema": events.schema, **place}).decode()


class PositionRow:
    """The row ``name`` of ``table``, of a projection of ``events`` (`events_as_json`)."""

    def __init__(self, table: Table, name: str, events: str, dialect: str, stall_limit: float) -> None:
        self._table = table
        self._name = name
        self._events = events
        self._its = table.c.name == name
        self._insert = insert_into(table, dialect)
        self._is_postgresql = dialect == "postgresql"
        place = [table.c[name] for name in _READ]
        self._read: Any = select(*place).where(self._its)
        if self._is_postgresql:
            planner = [func.current_setting(name).label(name) for name in PLANNER]
            limited = text(f"(SELECT {limits_of(stall_limit, stall_limit)})")
            locked = select(*place, *planner).where(self._its, limited)
            self._lock: Any = locked.with_for_update(skip_locked=True)
        else:  # a write, which takes the lock of all writes
            self._lock = update(table).where(self._its).values(name=table.c.name).returning(*place)

    def begin(self, connection: Connection) -> None:
        """Have the row there. Raises `ProjectionMisused` where it is of other events."""
        first = {"name": self._name, **asdict(Checkpoint()), "events": self._events}
        connection.execute(self._insert.values(first).on_conflict_do_nothing())
        found = self.read(connection)
        if found is not None and orjson.loads(found.events) != orjson.loads(self._events):
            raise ProjectionMisused(
                f"{self._name} has applied {found.events}, and is of {self._events} now: give it another name, or reset it"
            )

    def read(self, connection: Connection) -> Row[Any] | None:
        """Its place, attempts and events, without a lock."""
        return connection.execute(self._read).one_or_none()

    def locked(self, connection: Connection) -> Row[Any] | None:
        """The same, locked until the transaction ends; ``None`` where it isn't there, or another transaction has it.

        On PostgreSQL with the limits of the transaction set, and what the planner's settings are. On SQLite it waits for another
        one, as its connection does for each lock.
        """
        return connection.execute(self._lock).one_or_none()

    def planned(self, connection: Connection, settings: Row[Any] | None, step: Callable[[], Result]) -> Result:
        """The result of ``step``, which reads events. Behind it the planner's ``settings`` are as `locked` has found them."""
        if not self._is_postgresql:
            return step()
        connection.execute(_PLAN)
        result = step()
        if settings is not None:
            connection.execute(_PLAN_BACK, {name: settings._mapping[name] for name in PLANNER})
        return result

    def store(self, connection: Connection, checkpoint: Checkpoint) -> None:
        """Move on to ``checkpoint``: nothing fails any more."""
        healthy = {"failed_at": None, "failed_position": None, "attempts": 0, "reason": None}
        values = asdict(checkpoint) | healthy | {"moved_at": clock(connection)}
        connection.execute(update(self._table).where(self._its).values(values))

    def note(self, connection: Connection, position: int, reason: str) -> Row[Any] | None:
        """Keep that the event at ``position`` has failed once more; ``attempts`` and ``failed_at`` as they are now."""
        columns = self._table.c
        again = columns.failed_position == position
        is_again = connection.scalar(select(columns.name).where(self._its, again)) is not None
        values: dict[str, Any] = {"failed_position": position, "attempts": columns.attempts + 1, "reason": reason}
        values["failed_at"] = func.coalesce(columns.failed_at, clock(connection)) if is_again else clock(connection)
        noted = update(self._table).where(self._its).values(values)
        return connection.execute(noted.returning(columns.attempts, columns.failed_at)).one_or_none()

    def reset(self, connection: Connection, wait_timeout: float) -> None:
        """Back to the beginning, once whoever applies events has ended. Raises `ProjectionMisused`."""
        if has_written(connection):
            raise ProjectionMisused(WRITTEN_BEFORE)
        if self._is_postgresql:
            connection.execute(text(f"SELECT {wait_limit(wait_timeout)}"))
        row = {
            "name": self._name, **asdict(Checkpoint()), "events": self._events, "moved_at": None,
            "failed_at": None, "failed_position": None, "attempts": 0, "reason": None,
        }  # fmt: skip
        connection.execute(self._insert.values(row).on_conflict_do_update(index_elements=["name"], set_=row))


def entered(session: AnySync, table: str, step: Callable[[Connection], Result]) -> Result:
    """The result of ``step`` in a session's transaction. Raises `ProjectionMisused`, `InboxBusy`, `InboxUnavailable`."""
    try:
        connection = session if isinstance(session, Connection) else session.connection()
        if connection.dialect.name not in DIALECTS:
            raise ProjectionMisused(f"the database is {connection.dialect.name}: PostgreSQL or SQLite is needed")
        check_commits_nothing(connection)
        return step(connection)
    except (SQLAlchemyError, OSError) as error:
        found = meaning(error, table)
        if isinstance(found, InboxMisused):
            reason = reason_of(error)
            raise ProjectionMisused(
                f"the table {table}, or that of the events, is missing, not as it is needed, or not the role's to use ({reason}):"
                " oncegate projections create --database URL"
            ) from error
        if found is error:
            raise
        raise found from error
    except InboxMisused as error:
        raise ProjectionMisused(
            "the connection is in AUTOCOMMIT: the position would be committed without what is applied; use an engine without it"
        ) from error
