"""SQLAlchemy compiles statements once: compiling that of a marker, or of a message, takes longer than executing it."""

from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine.interfaces import CacheStats
from sqlalchemy.orm import Session

from oncegate.sql import Inbox, Outbox
from tests.sql.handlers.parking import consume, deliveries
from tests.sql.outbox.conftest import made
from tests.sql.places import Place


def executed(place: Place, table: str) -> list[tuple[str, bool]]:
    """The first word of each statement about ``table`` from now on, and whether it was known before."""
    texts: list[str] = []
    found: list[tuple[str, bool]] = []

    def before(connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        if table in statement:
            made_before = any(statement is each for each in texts)  # a text that the driver takes as it is
            is_known = made_before if context.compiled is None else context.cache_hit is CacheStats.CACHE_HIT
            found.append((statement.split()[0], is_known))
            texts.append(statement)

    event.listen(place.sync_engine, "before_cursor_execute", before)
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
    if place.is_postgresql:  # one statement writes, or has read
        assert found == [("WITH", True), ("UPDATE", True), ("WITH", True)]
    else:
        assert found == [("INSERT", True), ("UPDATE", True), ("INSERT", True), ("SELECT", True)]


@pytest.mark.parametrize("place", ["asyncpg", "pysqlite"], indirect=True)
def test_nor_from_the_second_aggregate_of_an_order_on(place: Place) -> None:
    ledger = Inbox("ledger", order="contiguous")
    handler = place.handler(ledger, lambda _, payload: payload)
    found = executed(place, "oncegate_")

    def set_and_park(aggregate: str) -> None:
        place.run(lambda session: ledger.seed(session, aggregate, 7))
        consume(handler, *deliveries(9, aggregate=aggregate))
        consume(handler, *deliveries(9, aggregate=f"new {aggregate}"))

    set_and_park("a")
    found.clear()
    set_and_park("b")
    assert all(is_known for _, is_known in found), found
    assert len(found) > 8


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
    assert all(is_known for _, is_known in found)
    assert len(found) == (3 if place.is_postgresql else 5)
