"""A delivery's entry in the inbox: whether it is the first, and what the first one returned."""

import logging
from collections.abc import Coroutine, Generator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from sqlalchemy import Connection, Executable
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from oncegate.middleware.consumers.sql_interface import JSON_CODEC, StoredResponse, bounded, dumped
from oncegate.sql.database.errors import SequenceEarly
from oncegate.sql.order.guard import Decision

log = logging.getLogger("oncegate.inbox")


Keys = Sequence[dict[str, Any]]
"""The rows that a message has: parameters of `Keeping.statement`."""


@dataclass(frozen=True, slots=True)
class Keeping:
    """Results stored with the rows of messages, in their transaction: ``_result``, in JSON, of ``max_result`` bytes at most."""

    connection: Connection
    statement: Executable
    max_result: int

    def store(self, rows: Keys) -> None:
        """Execute the statement with each of these parameters."""
        if rows:
            self.connection.execute(self.statement, rows if len(rows) > 1 else rows[0])


class Entry:
    """True where this delivery is the first one of its message: then do the effect, in the same transaction.

    ``decision`` is finer where the inbox keeps an order. The truth of an entry that is ``EARLY`` raises `SequenceEarly`: who
    only skipped what is not the first would lose it. ``record`` is the message's id, fit for logs. ``result`` is what the first
    delivery has kept, as JSON gives it back; ``None`` where it has kept nothing, and for the first one itself. ``kept`` is
    whether there is one, be it ``None``.
    """

    def __init__(
        self,
        record: str,
        decision: Decision,
        keeping: Keeping,
        keys: Keys,
        *,
        stored: str | None = None,
        waiting: bool = False,
    ) -> None:
        self.record = record
        self.decision = decision
        self.first = decision is Decision.FIRST
        self.waiting = waiting
        """Messages are parked behind it."""
        self.result: Any = None if stored is None else JSON_CODEC.load(stored.encode())
        self.kept = stored is not None
        self._keeping = keeping
        self._keys = keys

    def __bool__(self) -> bool:
        if self.decision is Decision.EARLY:
            raise SequenceEarly(
                f"record {self.record or '-'}: the number before it was not applied yet, and it stays with the broker:"
                " a handler under @inbox.transaction parks it"
            )
        return self.first

    def keep(self, result: Any) -> None:
        """Store ``result`` as JSON with the marker, in the same transaction, for the deliveries that come second.

        What has no JSON form, or is over the inbox's ``max_result``, is left out, with a line in the log. Raises
        ``RuntimeError`` where this delivery isn't the first.
        """
        if not self.first:
            raise RuntimeError("this delivery is not the first of its message: it has nothing to keep")
        keep_all([(self, result)])

    def as_json(self, result: Any) -> str | None:
        """``result`` as it is kept; ``None``, and a line in the log, where it can't be."""
        if isinstance(result, StoredResponse):  # it would come back as a list
            log.warning("record %s: the inbox keeps no StoredResponse", self.record)
            return None
        kept = bounded(self._keeping.max_result, dumped(JSON_CODEC.dump, result, self.record), self.record)
        return None if kept is None else kept.decode()


def keep_all(results: Sequence[tuple[Entry, Any]]) -> None:
    """`Entry.keep` for the entries of one transaction."""
    kept = [(entry, stored) for entry, result in results if (stored := entry.as_json(result)) is not None]
    if kept:
        keeping = kept[0][0]._keeping
        keeping.store([key | {"_result": stored} for entry, stored in kept for key in entry._keys])
    for entry, _ in kept:
        entry.kept = True


class AsyncEntry:
    """An `Entry` whose `keep` is awaited."""

    def __init__(self, entry: Entry, session: AsyncSession | AsyncConnection) -> None:
        self.record = entry.record
        self.decision = entry.decision
        self.first = entry.first
        self.result: Any = entry.result
        self._entry = entry
        self._session = session

    def __bool__(self) -> bool:
        return bool(self._entry)

    async def keep(self, result: Any) -> None:
        """See `Entry.keep`."""
        await self._session.run_sync(lambda _: self._entry.keep(result))


class Marking:
    """The entry, to be awaited. Asked for its truth without that, it raises: as an object it would be true for every delivery."""

    def __init__(self, session: AsyncSession | AsyncConnection, marking: Coroutine[Any, Any, list[Entry]]) -> None:
        self._session = session
        self._marking = marking

    def __await__(self) -> Generator[Any, Any, AsyncEntry]:
        (entry,) = yield from self._marking.__await__()
        return AsyncEntry(entry, self._session)

    def __bool__(self) -> NoReturn:
        self._marking.close()
        raise TypeError("first(...) of an AsyncSession or AsyncConnection has to be awaited")
