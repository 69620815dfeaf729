"""Each line of the table in docs/projections.md: by what a delivery that comes twice is known, and where that is kept.

python -m tests.sql.projections.strategies URL
    By each strategy, delivers three events, each first to a process that dies: before it writes, after that and before its
    COMMIT, and after it and before it acknowledges. Then to one that doesn't. Prints JSON: how the first ones ended, and the
    read model.
"""

import inspect
import json
import sys
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from sqlalchemy import event as events
from sqlalchemy import text
from sqlalchemy.orm import Session

from oncegate.sql import Decision, Inbox
from oncegate.sql.inbox.create import tables
from tests.sql.consumers import die, exit_code, forked
from tests.sql.places import Place, done, place_of
from tests.sql.projections.recipes import TABLES, make_rows, recipe

ADD = text(
    "INSERT INTO model (account, amount) VALUES (:account, :amount)"
    " ON CONFLICT (account) DO UPDATE SET amount = model.amount + excluded.amount"
)
SET = text(
    "INSERT INTO model (account, amount) VALUES (:account, :amount)"
    " ON CONFLICT (account) DO UPDATE SET amount = excluded.amount"
)
KEEP = text(
    "INSERT INTO history (id, account, amount) VALUES (:id, :account, :amount)"
    " ON CONFLICT (id) DO UPDATE SET account = excluded.account, amount = excluded.amount"
)
WAITS = 60.0


@dataclass(frozen=True)
class Event:
    """One of a stream: ``version`` is its number there, ``position`` the one among all."""

    account: str
    version: int
    position: int

    @property
    def id(self) -> str:
        return f"{'event-' * 6}{self.position}"  # alike up to the 36th character

    @property
    def amount(self) -> int:
        return int(2 ** (self.position % 50))

    def given(self) -> dict[str, Any]:
        return {"account": self.account, "amount": self.amount}


Apply = Callable[[Any, Event], Awaitable[bool]]
Disordered = Literal["ledger", "newest", "loses", "over-counts"]


@dataclass(frozen=True)
class Strategy:
    """``disordered`` is what a read model has whose events came in another order; ``model`` is its table."""

    name: str
    apply: Apply
    disordered: Disordered
    model: str = "model"


def _marked(inbox: Inbox, write: Any = ADD, **by: Callable[[Event], Any]) -> Apply:
    """By an inbox; what comes before its turn is delivered again."""

    async def apply(session: Any, event: Event) -> bool:
        entry = await done(inbox.first(session, **{name: of(event) for name, of in by.items()}))
        if entry.decision is Decision.EARLY:
            return False
        if entry:
            await done(session.execute(write, event.given()))
        return True

    return apply


def _in_row(name: str) -> Apply:
    def applied(session: Session, event: Event) -> bool:
        columns, db = _columns(), session.connection()
        if name == "version":
            took: bool = columns.add_by_version(db, event.account, event.version, event.amount)
            return took or bool(columns.version_of(db, event.account) >= event.version)
        if name == "position":
            columns.add_by_position(db, event.account, event.position, event.amount)
        else:
            columns.add_by_id(db, event.account, event.id, event.amount)
        return True

    async def apply(session: Any, event: Event) -> bool:
        if inspect.iscoroutinefunction(getattr(session, "run_sync", None)):
            return bool(await session.run_sync(applied, event))
        return applied(session, event)

    return apply


_found: list[SimpleNamespace] = []


def _columns() -> SimpleNamespace:
    if not _found:
        with tempfile.TemporaryDirectory() as folder:
            _found.append(recipe("row-columns", Path(folder)))
    return _found[0]


async def _overwrites(session: Any, event: Event) -> bool:
    await done(session.execute(KEEP, {"id": event.id, **event.given()}))
    return True


async def _accumulates(session: Any, event: Event) -> bool:
    await done(session.execute(ADD, event.given()))
    return True


def _id(event: Event) -> str:
    return event.id


def _account(event: Event) -> str:
    return event.account


def _version(event: Event) -> int:
    return event.version


def _position(event: Event) -> int:
    return event.position


def _inbox(name: str, order: Any = "none") -> Inbox:
    return Inbox(name, order=order, wait_timeout=WAITS)


NOTHING = Strategy("nothing, adds up", _accumulates, "over-counts")
STRATEGIES = {
    each.name: each
    for each in (
        Strategy("id per projection", _marked(_inbox("ids"), key=_id), "ledger"),
        Strategy("id per stream", _marked(_inbox("ids-of"), key=_id, caller=_account), "ledger"),
        Strategy("id in the row", _in_row("id"), "ledger", "by_id"),
        Strategy(
            "position per projection, by hand",
            _marked(_inbox("global", "latest"), aggregate=lambda _: "all", sequence=_position),
            "loses",
        ),
        Strategy(
            "position per stream",
            _marked(_inbox("positions", "latest"), aggregate=_account, sequence=_position),
            "loses",
        ),
        Strategy("position in the row", _in_row("position"), "loses", "by_position"),
        Strategy(
            "version per stream",
            _marked(_inbox("versions", "contiguous"), aggregate=_account, sequence=_version),
            "ledger",
        ),
        Strategy(
            "version per stream, state",
            _marked(_inbox("states", "latest"), SET, aggregate=_account, sequence=_version),
            "newest",
        ),
        Strategy("version in the row", _in_row("version"), "ledger", "by_version"),
        Strategy("nothing, overwrites by id", _overwrites, "ledger", "history"),
        NOTHING,
    )
}


def make(place: Place) -> Place:
    """The tables of all strategies, empty."""

    def create(session: Session) -> None:
        for table in tables(None):
            table.drop(session.connection(), checkfirst=True)
            table.create(session.connection())
        for name, columns in (("model", "account"), ("history", "id")):
            session.execute(text(f"DROP TABLE IF EXISTS {name}"))
            account = "" if columns == "account" else ", account text"
            session.execute(text(f"CREATE TABLE {name} ({columns} text PRIMARY KEY{account}, amount bigint NOT NULL)"))

    place.run(create)
    make_rows(place, _columns())
    return place


def empty(place: Place) -> None:
    for table in (*TABLES, "model", "history", "oncegate_inbox", "oncegate_order", "oncegate_parked"):
        place.execute(f"DELETE FROM {table}")


def deliver(place: Place, strategy: Strategy, event: Event, *, fails: bool = False) -> bool:
    """Whether it may be acknowledged; one that fails is rolled back after its effect."""

    async def within(session: Any) -> bool:
        settled = await strategy.apply(session, event)
        if fails:
            raise LookupError
        return settled

    try:
        settled: bool = place.transact(within)
    except LookupError:
        return False
    return settled


def model(place: Place, strategy: Strategy) -> dict[str, int]:
    rows = place.execute(f"SELECT account, sum(amount) AS amount FROM {strategy.model} GROUP BY account")
    return {row.account: int(row.amount) for row in rows}


POINTS = ("before the write", "after it, before COMMIT", "after COMMIT, before the offset")


def main(url: str) -> None:
    place, found = place_of(url), {}
    for name in STRATEGIES:
        empty(place)
        codes = killed(url, name)
        found[name] = [codes, model(place, STRATEGIES[name])]
    sys.stdout.write(json.dumps(found))


def killed(url: str, name: str) -> list[int]:
    """How those ended that were to die."""
    codes = []
    for number, point in enumerate(POINTS, 1):

        def work(number: int = number, point: str = point) -> bool:
            place = place_of(url, connect_args={"timeout": WAITS} if url.startswith("sqlite") else {})

            def die_at_write(_c: object, _u: object, statement: str, *_: object) -> None:
                if statement.lstrip().startswith(("INSERT", "WITH")):
                    die()

            listeners: dict[str, tuple[Any, str, Any]] = {
                POINTS[0]: (place.sync_engine, "before_cursor_execute", die_at_write),
                POINTS[1]: (place.sync_engine, "commit", die),
                POINTS[2]: (Session, "after_commit", die),
            }
            events.listen(*listeners[point])
            return deliver(place, STRATEGIES[name], Event("a", number, number))

        codes.append(exit_code(forked(work)))
        assert deliver(place_of(url), STRATEGIES[name], Event("a", number, number))
    return codes


if __name__ == "__main__":
    main(*sys.argv[1:])
