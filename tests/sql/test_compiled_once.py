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
    found: list[tuple[str, CacheStats]] = []

    def executed(connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        if "oncegate_inbox" in statement:
            found.append((statement.split()[0], context.cache_hit))

    def deliver(key: str) -> None:
        place.deliver(inbox, key, keep=1, payload=b"p")

    deliver("a")
    deliver("a")
    event.listen(engine, "before_cursor_execute", executed)
    deliver("b")
    deliver("b")
    hit = CacheStats.CACHE_HIT
    if engine.dialect.name == "postgresql":  # one statement writes, or has read
        assert found == [("WITH", hit), ("UPDATE", hit), ("WITH", hit)]
    else:
        assert found == [("INSERT", hit), ("UPDATE", hit), ("INSERT", hit), ("SELECT", hit)]
