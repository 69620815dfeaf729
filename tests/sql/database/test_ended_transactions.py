"""A handler under `Inbox.transaction` doesn't end its transaction: what would is refused before it is sent, or noticed at least.

And a COMMIT of the inbox's own that fails for a reason of the database's has committed nothing.

Rules of docs/contract.md: R12.14.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, sessionmaker

from oncegate import Action, Begun, Delivery, MemoryCache, Subscription
from oncegate.sql import Inbox, InboxMisused
from oncegate.sql.database import misuse
from testing.growth import is_linear
from tests.sql.places import EFFECT, Place, SyncPlace, in_loop

billing = Inbox("billing")


def consume(handler: Callable[..., Any]) -> Begun:
    """What the hook makes of a delivery."""
    return asyncio.run(Subscription("billing", cache=MemoryCache()).execute(Delivery("a", b"p"), handler, "a"))


def pays(session: Session, payload: Any) -> None:
    session.execute(EFFECT, {"what": payload})


@pytest.mark.parametrize("ends", ["commit", "rollback", "close"])
def test_a_handler_that_ends_the_transaction_is_refused(place: Place, ends: str) -> None:
    """Its marker would be committed without the whole effect, or the effect without its marker."""

    def work(session: Session, payload: Any) -> None:
        pays(session, payload)
        getattr(session, ends)()
        pays(session, payload)

    begun = consume(place.handler(billing, work))
    assert isinstance(begun.execution.raised, InboxMisused), begun.execution.raised
    assert begun.action is Action.REDELIVER
    assert (place.effects(), place.markers()) == ([], [])


@pytest.mark.parametrize("raw", [False, True])
def test_so_is_one_that_executes_what_ends_it_alone_or_behind_another_statement(place: Place, raw: bool) -> None:
    """Before it is sent: psycopg takes several statements at once, and would have committed."""
    for statement in (
        "COMMIT", "COMMIT;", "ROLLBACK", "-- done\n commit", "/* now */ END", "COMMIT AND CHAIN", "ROLLBACK TRANSACTION",
        "; commit", "SELECT 1; COMMIT", "SELECT $$;$$, ';', 1 AS \";\"; /* ; */ -- ;\n END;", r"SELECT e'\';'; ABORT",
        "SELECT 1;; PREPARE TRANSACTION 'a'",
    ):  # fmt: skip
        sent: list[str] = []

        def work(session: Session, payload: Any, statement: str = statement, sent: list[str] = sent) -> None:
            pays(session, payload)
            connection = session.connection()
            event.listen(connection, "after_cursor_execute", lambda *args: sent.append(args[2]))
            connection.exec_driver_sql(statement) if raw else session.execute(text(statement))

        begun = consume(place.handler(billing, work))
        assert isinstance(begun.execution.raised, InboxMisused), (statement, begun.execution.raised)
        assert statement not in sent
        assert (place.effects(), place.markers()) == ([], [])
    if place.is_postgresql:  # afterwards the connection is anybody's
        assert place.run(
            lambda session: session.execute(text("SELECT 1; COMMIT" if "psycopg" in place.url else "COMMIT"))
        )


def test_a_commit_in_disguise_is_noticed_at_least(place: Place) -> None:
    """On the driver's own connection, where no event tells of it."""

    def work(session: Session, payload: Any) -> None:
        pays(session, payload)
        session.connection().connection.dbapi_connection.commit()  # type: ignore[union-attr]  # it is connected

    begun = consume(place.handler(billing, work))
    assert isinstance(begun.execution.raised, InboxMisused), begun.execution.raised
    assert begun.action is Action.REDELIVER


def test_what_only_looks_like_an_end_is_executed(place: Place) -> None:
    on_postgresql = (
        r"""SELECT $$; COMMIT$$, $a$; $$; END $a$, E'\'; COMMIT', 'it''s; ROLLBACK', 1 AS "; ABORT" """,
        "CREATE FUNCTION one() RETURNS int BEGIN ATOMIC SELECT 1; END",
        "DROP FUNCTION one",
        "SAVEPOINT a; ROLLBACK TO a" if "psycopg" in place.url else "SAVEPOINT a",
    )

    def work(session: Session, payload: Any) -> None:
        session.execute(text("INSERT INTO effects (what) VALUES ('; COMMIT')"))
        session.execute(text("/* COMMIT; */" * 200 + "INSERT INTO effects (what) VALUES ('a')"))
        for statement in on_postgresql if place.is_postgresql else ():
            session.connection().exec_driver_sql(statement)

    assert consume(place.handler(billing, work)).action is Action.ACKNOWLEDGE
    assert place.effects() == ["; COMMIT", "a"]


@pytest.mark.parametrize(
    "unclosed", ["'", '"', "$a$ ", "$a", "/*", "--", "e'", " $$ $", ";", "; /**/", "; --", ";e'\\"]
)
def test_a_statement_is_read_once_whatever_is_not_closed_in_it(unclosed: str) -> None:
    assert is_linear(misuse.ends_transaction, lambda size: "SELECT 1; SELECT " + unclosed * size, 8000)


@pytest.mark.parametrize("place", ["asyncpg", "psycopg", "pysqlite"], indirect=True)
def test_a_commit_that_the_database_refuses_has_committed_nothing(place: Place) -> None:
    """So the handler may do it in another transaction; one that stands may not be followed by a second one."""
    place.execute("CREATE TABLE IF NOT EXISTS owner (id INTEGER PRIMARY KEY)")
    deferred = "REFERENCES owner (id) DEFERRABLE INITIALLY DEFERRED"
    place.execute(f"CREATE TABLE IF NOT EXISTS owned (owner INTEGER {deferred})")
    fails = [True]

    def work(session: Session, payload: Any) -> None:
        if not place.is_postgresql:
            session.execute(text("PRAGMA defer_foreign_keys = ON"))
        pays(session, payload)
        session.execute(text(f"INSERT INTO owned VALUES ({'1' if fails else 'NULL'})"))

    if not place.is_postgresql:
        event.listen(place.engine, "connect", lambda connection, _: connection.execute("PRAGMA foreign_keys = ON"))
    handler = place.handler(billing, work)

    async def once(payload: Any) -> list[bool]:
        with pytest.raises(DBAPIError):
            await in_loop(handler, payload)
        fails.clear()
        await in_loop(handler, payload)
        with pytest.raises(InboxMisused, match="has committed this delivery already"):
            await in_loop(handler, payload)
        return [True]

    begun = consume(once)
    assert begun.execution.returned == [True], begun.execution.raised
    assert place.effects() == ["a"]


@pytest.mark.parametrize("place", ["asyncpg", "pysqlite"], indirect=True)
def test_an_error_behind_the_commit_undoes_nothing(place: Place) -> None:
    def fails(_: Session) -> None:
        raise ZeroDivisionError

    def work(session: Session, payload: Any) -> None:
        pays(session, payload)
        event.listen(session, "after_commit", fails)

    handler = place.handler(billing, work)

    async def twice(payload: Any) -> None:
        for error in (ZeroDivisionError, InboxMisused):
            with pytest.raises(error):
                await in_loop(handler, payload)

    assert consume(twice).action is Action.ACKNOWLEDGE
    assert place.effects() == ["a"]


def test_only_an_engine_whose_transactions_are_held_has_its_statements_looked_at(place: Place) -> None:
    """A listener costs each statement of an engine, of the whole app's where it is on all of them."""
    place.deliver(billing, "b")
    assert not list(place.sync_engine.dispatch.before_cursor_execute)
    consume(place.handler(billing, pays))
    assert len(list(place.sync_engine.dispatch.before_cursor_execute)) == 1


def test_a_session_of_a_connection_that_was_there_before_is_looked_at_too(tmp_path: Path) -> None:
    place = SyncPlace(f"sqlite+pysqlite:///{tmp_path}/app.db")
    place.prepare()
    with place.engine.connect() as connection:
        handler = billing.transaction(sessionmaker(connection))(
            lambda payload, session: session.execute(text("COMMIT"))
        )
        begun = consume(handler)
    assert isinstance(begun.execution.raised, InboxMisused), begun.execution.raised
    assert place.markers() == []
