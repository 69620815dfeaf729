"""An operator's changes in the consumers' database, made and reported: one road for the API and for the console.

Nobody knows of a change that was not answered in time whether it was made:
its line says so.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from oncegate.app.operators.audit import Author, printable
from oncegate.app.operators.audit_lines import AuditLines, report
from oncegate.app.operators.database.errors import DatabaseUnavailable
from oncegate.app.operators.database.lines import (
    DISCARDED,
    RETRIED,
    SKIPPED,
    event_line,
    message_line,
    messages_line,
    number_line,
)

if TYPE_CHECKING:
    from oncegate.app.operators.database.database import OperatorsDatabase

_PERHAPS: Final = "(perhaps: the database has not answered)"


@dataclass(frozen=True, slots=True)
class DatabaseChanges:
    """Changes by one ``author``. Each raises what `oncegate.app.operators.database.database.OperatorsDatabase` does."""

    database: "OperatorsDatabase"
    audit: AuditLines | None
    author: Author

    async def skip(self, consumer: str, aggregate: str | bytes, sequence: int, name: str) -> int:
        """Count a number as applied that never comes; how many are parked behind it. ``name`` is for the audit."""
        what = number_line(consumer, name, sequence)
        async with self._made(what, SKIPPED):
            left = await self.database.skip(consumer, aggregate, sequence)
        await self._report(what, SKIPPED)
        return left

    async def retry_parked(self, consumer: str, aggregate: str | bytes, name: str) -> int:
        """Have a parked message tried again that has failed for good; its number."""
        async with self._made(number_line(consumer, name, None), RETRIED):
            number = await self.database.retry_parked(consumer, aggregate)
        await self._report(number_line(consumer, name, number), RETRIED)
        return number

    async def retry_messages(self, numbers: tuple[int, ...] = ()) -> int:
        """Have messages of outboxes tried again, all that are dead if none are named; how many."""
        async with self._made(messages_line(None, numbers), RETRIED):
            count = await self.database.retry_messages(numbers)
        if count:
            await self._report(messages_line(count, numbers), RETRIED)
        return count

    async def discard_message(self, number: int) -> dict[str, Any] | None:
        """Delete a message that is not published; what it was."""
        async with self._made(f"message {number} of the outbox", DISCARDED):
            gone = await self.database.discard_message(number)
        if gone is not None:
            await self._report(f"message {message_line(gone)}", DISCARDED)
        return gone

    async def skip_event(self, projection: str, position: int) -> None:
        """Have the event at which a projection stands passed without being applied."""
        what = event_line(projection, position)
        async with self._made(what, SKIPPED):
            await self.database.skip_event(projection, position)
        await self._report(what, SKIPPED)

    @asynccontextmanager
    async def _made(self, what: str, done: str) -> AsyncIterator[None]:
        """Report that ``what`` was perhaps ``done``, where the database does not answer in time."""
        try:
            yield
        except DatabaseUnavailable as error:
            if error.is_silent:
                await self._report(what, f"{done} {_PERHAPS}")
            raise

    async def _report(self, what: str, done: str) -> None:
        await report(self.audit, self.author, printable(what), done)
