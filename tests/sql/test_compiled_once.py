"""SQLAlchemy compiles an inbox's statements once: compiling a marker's takes longer than executing it."""

from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine.interfaces import CacheStats

from oncegate.sql import Inbox
from tests.sql.places import Place


@pytest.mark.parametrize("aliases", [(), ("payments",)])
def test_from_the_second_delivery_on_nothing_is_compiled(place: Place, aliases: tuple[str, ...]) -> None:
    inbox = Inbox("billing", aliases=aliases)
    engine: Any = getattr(place.engine, "sync_engine", place.engine)  # type: ignore[attr-defined]  # each kind of place has one
    texts: list[str] = []
    found: list[tuple[str, bool]] = []

    def executed(connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        if "oncegate_inbox" in statement:
            made_before = any(statement is each for each in texts)  # a text that the driver takes as it is
            is_known = made_before if context.compiled is None else context.cache_hit is CacheStats.CACHE_HIT
            found.append((statement.split()[0], is_known))
            texts.append(statement)

    def deliver(key: str) -> None:
        place.deliver(inbox, key, keep=1, payload=b"p")

    event.listen(engine, "before_cursor_execute", executed)
    deliver("a")
    deliver("a")
    found.clear()
    deliver("b")
    deliver("b")
    if engine.dialect.name == "postgresql":  # one statement writes, or has read
        assert found == [("WITH", True), ("UPDATE", True), ("WITH", True)]
    else:
        assert found == [("INSERT", True), ("UPDATE", True), ("INSERT", True), ("SELECT", True)]
