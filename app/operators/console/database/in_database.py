"""Find's part in the consumers' database: an aggregate, a message of an outbox, who has processed a message."""

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from oncegate.app.operators.console.database.outbox import MOST_ROWS, NUMBER
from oncegate.app.operators.database.database import OperatorsDatabase
from oncegate.app.operators.database.errors import DatabaseUnavailable, NotKept
from oncegate.app.operators.records.records import NotARecord

Found = TypeVar("Found")


async def found_in_database(database: OperatorsDatabase, what: str) -> tuple[dict[str, Any], list[str]]:
    """Findings for ``what``: as an aggregate that waits or has messages, a message's id, a marker's key or record. And a line
    where the database can't be read. Empty where nothing is found.
    """
    try:
        (waiting, _), messages, message, markers = await asyncio.gather(
            _or(database.waiting(aggregate=what, limit=MOST_ROWS), ([], "")),
            _or(database.messages(limit=MOST_ROWS, aggregate=what), {"messages": []}),
            _message(database, what),
            _or(database.markers(what), {"markers": []}),
        )
    except DatabaseUnavailable as error:
        return {}, [f"The consumers' database was not searched: {error}"]
    found = {
        "waiting": waiting,
        "messages": [*messages["messages"], *([] if message is None else [message])],
        "markers": markers["markers"],
    }
    return (found if any(found.values()) else {}), []


async def _message(database: OperatorsDatabase, what: str) -> dict[str, Any] | None:
    return await _or(database.message(int(what)), None) if NUMBER.fullmatch(what) else None


async def _or(looking: Awaitable[Found], nothing: Found) -> Found:
    """The finding; ``nothing`` where there is no such table, or ``what`` can be no such id."""
    try:
        return await looking
    except (NotKept, NotARecord):
        return nothing
