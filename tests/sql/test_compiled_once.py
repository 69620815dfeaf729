"""SQLAlchemy compiles statements once: compiling that of a marker, or of a message, takes longer than executing it."""

from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine.interfaces import CacheStats
from sqlalchemy.orm import Session

from oncegate.sql import Inbox, Outbox
from tests.sql.outbox.conftest import made
from tests.sql.places import Place


def executed(place: Place, table: str) -> list[tuple[str, CacheStats]]:
    """The first word of each statement about ``table`` from now on, and whether it was compiled for that."""
    engine: Any = getattr(place.engine, "sync_engine", place.engine)  # type: ignore[attr-defined]  # each kind of place has one
    found: list[tuple[str, CacheStats]] = []

    def before(connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        if table in statement:
            found.append((statement.split()[0], context.cache_hit))

    event.listen(engine, "before_cursor_execute", before)
    return found


@pytest.mark.parametrize("aliases", [(), ("payments",)])
def test_from_the_second_delivery_on_nothing_is_compiled(place: Place, aliases: tuple[str, ...]) -> None:
    inbox = Inbox("billing", aliases=aliases)
    found = executed(place, "oncegate_inbox")

    def deliver(key: str) -> None:
        place.deliver(inbox, key, keep=1, payload=b"p")

    deliver("a")
    deliver("a")
    found.clear()
    deliver("b")
    deliver("b")
    hit = CacheStats.CACHE_HIT
    if place.is_postgresql:  # one statement writes, or has read
        assert found == [("WITH", hit), ("UPDATE", hit), ("WITH", hit)]
    else:
        assert found == [("INSERT", hit), ("UPDATE", hit), ("INSERT", hit), ("SELECT", hit)]


@pytest.mark.parametrize("place", ["asyncpg", "pysqlite"], indirect=True)
def test_nor_from_the_second_message_of_an_outbox_on(place: Place) -> None:
    orders = Outbox("orders")
    made(place)
    found = executed(place, "oncegate_")

    def add(session: Session) -> None:
        orders.add(session, "payments", b"1")
        at = orders.add(session, "payments", b"1", aggregate="a", headers={"x": "y"}).sequence
        orders.add(session, "payments", b"1", aggregate="a", expected=at)

    place.run(add)
    found.clear()
    place.run(add)
    assert {stats for _, stats in found} == {CacheStats.CACHE_HIT}
    assert len(found) == (3 if place.is_postgresql else 5)
