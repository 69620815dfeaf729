"""Accounts: a table of events, read models that add up and that keep each event, and the producer's ledger of both.

The ledger is what the producer has committed; it is never made of what arrives.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from sqlalchemy import BigInteger, Column, MetaData, Row, Table, Text, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from oncegate.sql import Projection
from oncegate.sql.projections.table import projection_table
from tests.sql.places import AsyncPlace, Place

_TYPES = {"position": BigInteger, "account": Text, "version": BigInteger, "amount": BigInteger}
EVENTS = Table(
    "events", MetaData(), Column("transaction", Text), *[Column(name, kind) for name, kind in _TYPES.items()]
)
TABLES: dict[str, str | dict[str, str]] = {
    "events": {
        "postgresql": "position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,"
        " transaction xid8 NOT NULL DEFAULT pg_current_xact_id(), account text, version bigint, amount bigint",
        "sqlite": "position INTEGER PRIMARY KEY AUTOINCREMENT, account text, version bigint, amount bigint",
    },
    "balance": "account text PRIMARY KEY, amount bigint NOT NULL",
    "applied": {
        "postgresql": "n bigint GENERATED ALWAYS AS IDENTITY, account text, version bigint",
        "sqlite": "n INTEGER PRIMARY KEY AUTOINCREMENT, account text, version bigint",
    },
}
ADD = text(
    "INSERT INTO balance (account, amount) VALUES (:account, :amount)"
    " ON CONFLICT (account) DO UPDATE SET amount = balance.amount + excluded.amount"
)
NOTE = text("INSERT INTO applied (account, version) VALUES (:account, :version)")
PRODUCE = text("INSERT INTO events (account, version, amount) VALUES (:account, :version, :amount)")


def add(event: Any, session: Session) -> None:
    """Adds the event's amount up, and notes that it was applied, and when."""
    session.execute(ADD, {"account": event.account, "amount": event.amount})
    session.execute(NOTE, {"account": event.account, "version": event.version})


def make(place: Place) -> Place:
    """The tables, empty."""
    dialect = "postgresql" if place.is_postgresql else "sqlite"

    def create(session: Session) -> None:
        connection = session.connection()
        projection_table(MetaData()).drop(connection, checkfirst=True)
        projection_table(MetaData()).create(connection)
        for name, columns in TABLES.items():
            columns = columns if isinstance(columns, str) else columns[dialect]
            connection.execute(text(f"DROP TABLE IF EXISTS {name}"))
            connection.execute(text(f"CREATE TABLE {name} ({columns})"))
        connection.execute(text("CREATE INDEX events_account ON events (account, version)"))
        if place.is_postgresql:
            connection.execute(text("CREATE INDEX events_transaction ON events (transaction, position)"))

    place.in_a_thread(partial(place.run, create))
    return place


def projection(
    place: Place, name: str = "balance.v1", work: Callable[[Any, Session], None] = add, **options: Any
) -> Projection:
    """A read model of accounts by a handler of the place's kind, which does ``work`` for each event."""
    made = Projection(name, EVENTS, aggregate="account", sequence="version", **options)
    if isinstance(place, AsyncPlace):

        @made.apply
        async def apply(event: Row[Any], session: AsyncSession) -> None:
            await session.run_sync(lambda sync: work(event, sync))

    else:

        @made.apply
        def apply_sync(event: Row[Any], session: Session) -> None:
            work(event, session)

    return made


def engine_of(place: Place) -> Any:
    """An engine of the place's kind, for this event loop."""
    options = {} if place.is_postgresql else {"connect_args": {"timeout": 60}}
    return create_async_engine(place.url, **options) if isinstance(place, AsyncPlace) else place.engine


class Ledger:
    """What was committed: the amounts of each account, in their order."""

    def __init__(self) -> None:
        self.amounts: defaultdict[str, list[int]] = defaultdict(list)

    def produce(self, place: Place, *accounts: str) -> None:
        """One event each, in one transaction."""
        place.in_a_thread(partial(place.run, partial(self.write, accounts=accounts)))

    async def produced(self, place: Place, *accounts: str) -> None:
        """`produce`, where a runner in this event loop may be in the midst of a transaction."""
        await asyncio.to_thread(self.produce, place, *accounts)

    def write(self, session: Session, accounts: Sequence[str]) -> None:
        for account in accounts:
            amounts = self.amounts[account]
            amounts.append(10 ** (len(amounts) % 15) + len(amounts))
            session.execute(PRODUCE, {"account": account, "version": len(amounts), "amount": amounts[-1]})

    def balances(self) -> dict[str, int]:
        return {account: sum(amounts) for account, amounts in self.amounts.items()}

    def numbers(self) -> dict[str, list[int]]:
        return {account: list(range(1, len(amounts) + 1)) for account, amounts in self.amounts.items()}

    @property
    def count(self) -> int:
        return sum(map(len, self.amounts.values()))


def balances(place: Place) -> dict[str, int]:
    rows = place.in_a_thread(lambda: place.execute("SELECT account, amount FROM balance"))
    return {row.account: int(row.amount) for row in rows}


def applied(place: Place) -> dict[str, list[int]]:
    """The numbers that were applied, by account, in the order in which they were."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for row in place.in_a_thread(lambda: place.execute("SELECT account, version FROM applied ORDER BY n")):
        found[row.account].append(row.version)
    return dict(found)


def applied_count(place: Place) -> int:
    (row,) = place.in_a_thread(lambda: place.execute("SELECT count(*) AS n FROM applied"))
    return int(row.n)


def more_applied(place: Place, before: int) -> bool:
    return applied_count(place) > before


def position(place: Place, name: str = "balance.v1") -> Any:
    """The projection's row; none where there is none."""
    found = place.in_a_thread(lambda: place.execute("SELECT * FROM oncegate_projection WHERE name = :name", name=name))
    return found[0] if found else None
