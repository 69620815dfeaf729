"""A delivery's entry in the inbox: whether it is the first, and what the first one returned."""

import logging
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, NamedTuple, NoReturn

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from oncegate.cache.record import StoredResponse
from oncegate.middleware.outcome.results import JsonCodec
from oncegate.sql.database.errors import SequenceEarly
from oncegate.sql.order.guard import Decision

log = logging.getLogger("oncegate.inbox")

_CODEC = JsonCodec(Any)


class Kept(NamedTuple):
    """A result to be stored, in JSON."""

    record: str
    stored: str


class Entry:
    """True where this delivery is the first one of its message: then do the effect, in the same transaction.

    ``decision`` says more where the inbox keeps an order. The truth of an entry that is ``EARLY`` raises `SequenceEarly`: who
    only skipped what is not the first would lose it. ``record`` is the message's id, fit for logs. ``result`` is what the first
    delivery has kept, as JSON gives it back; ``None`` where it has kept nothing, and for the first one itself. ``kept`` is
    whether there is one, be it ``None``.
    """

    def __init__(
        self,
        record: str,
        *,
        decision: Decision,
        stored: str | None,
        store: Callable[[list[Kept]], None],
        max_result: int,
        waiting: bool = False,
    ) -> None:
        self.record = record
        self.decision = decision
        self.first = decision is Decision.FIRST
        self.waiting = waiting
        """Messages are parked behind it."""
        self.result: Any = None if stored is None else _CODEC.load(stored.encode())
        self.kept = stored is not None
        self._store = store
        self._max_result = max_result

    def __bool__(self) -> bool:
        if self.decision is Decision.EARLY:
            raise SequenceEarly(f"record {self.record or '-'}: the number before it was not applied yet")
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
        try:
            kept = _CODEC.dump(result)
        except BaseException as error:  # noqa: BLE001  # whatever a value's own serializer raises: the effect is to happen all the same
            log.warning("record %s: the result can't be kept: %s", self.record, type(error).__name__)
            return None
        if len(kept) > self._max_result:
            log.warning("record %s: the result is too large to be kept", self.record)
            return None
        return kept.decode()


def keep_all(results: Sequence[tuple[Entry, Any]]) -> None:
    """`Entry.keep` for the entries of one transaction."""
    kept = [(entry, stored) for entry, result in results if (stored := entry.as_json(result)) is not None]
    if kept:
        kept[0][0]._store([Kept(entry.record, stored) for entry, stored in kept])
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
