"""The newest records of a choice, found by a scan that is bounded: no cache keeps them in the order of their time.

Strategy. An index would cost each first request a command, or a column that is written with it. So records are looked at in the
cache's own order, a few at a time, and only the newest are held. What can be ruled out by its id alone is not read.
"""

import heapq
import re
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

from oncegate.app.operators.records.records import (
    AT_ONCE,
    UNREADABLE,
    NotARecord,
    Records,
    in_parts,
    is_of_route,
    summarise,
)
from oncegate.app.turns import in_pieces, others_first
from oncegate.cache.record import Claim
from oncegate.cache.store import Page
from oncegate.cache.trace import trace_id_of
from oncegate.middleware.rules.keys.key import RECORD_ID, caller_of_id, record_id

CALLER_DIGEST: Final = re.compile(r"[A-Za-z0-9._]{20}")
"""The caller's part of a record's id, behind the colon."""
MOST_SCANNED: Final = 10_000
"""Records that one answer looks at where nothing else is said."""
MOST_SECONDS: Final = 10.0
"""After which an answer ends with what was found."""
_STEP: Final = 100


@dataclass(frozen=True, slots=True)
class Chosen:
    """A choice of records: in the ``state`` that they read as, of ``callers`` (digests), of the ``route``, begun at
    ``since_ms`` (Unix time) or later and earlier than ``before_ms``, a part of the trace ``trace_id``, by the process
    ``gateway``.

    ``None``, or 0: any. What a record does not say is not wanted.
    """

    state: str | None = None
    callers: frozenset[str] | None = None
    route: str | None = None
    since_ms: int = 0
    trace_id: str | None = None
    before_ms: int = 0
    gateway: str | None = None

    def may_be(self, identifier: str) -> bool:
        """Whether a record of this id can be one of them."""
        own = RECORD_ID.fullmatch(identifier) is not None
        return own and (self.callers is None or caller_of_id(identifier) in self.callers)

    def is_one(self, held: Claim | None) -> bool:
        """Whether it is, in any state; ``None`` is one that can't be read."""
        if held is None:
            return (self.route, self.since_ms, self.before_ms, self.trace_id, self.gateway) == (None, 0, 0, None, None)
        trace = held.record.trace
        if self.trace_id is not None and trace_id_of(trace.span) != self.trace_id:
            return False
        if self.before_ms and not 0 < trace.begun_at_ms < self.before_ms:
            return False
        if self.gateway is not None and trace.gateway != self.gateway:
            return False
        return (self.route is None or is_of_route(trace.route, self.route)) and trace.begun_at_ms >= self.since_ms


class Scan:
    """A scan of ``records`` for those that may be ``chosen``, from ``cursor`` on. ``scanned`` is how many were looked at,
    ``cursor`` where it goes on, both as of the last page that is done with; ``""`` once it is at the end.
    """

    def __init__(self, records: Records, chosen: Chosen, cursor: str = "") -> None:
        self.cursor = cursor
        self.scanned = 0
        self._records = records
        self._chosen = chosen
        self._seen: set[str] = set()

    async def parts(
        self, most: int, seconds: float = MOST_SECONDS
    ) -> AsyncGenerator[list[tuple[str, Claim | None]], None]:
        """Some at a time, each with its id; ``None`` is one that can't be read. It ends after about ``most``, or ``seconds``.

        Raises `NotARecord` for a cursor that is none, `oncegate.cache.errors.CacheError`.
        """
        ends = monotonic() + seconds
        async for page in _pages(self._records, self.cursor):
            for some in in_parts(list(self._unseen(page.keys)), AT_ONCE):
                held = await self._records.peek_all([self._records.key_of(identifier) for identifier in some])
                yield [
                    (identifier, each if isinstance(each, Claim) else None)
                    for identifier, each in zip(some, held, strict=True)
                    if each is not None
                ]
                await others_first()
            self.cursor, self.scanned = page.cursor, len(self._seen)
            if self.scanned >= most or monotonic() >= ends:
                return

    def _unseen(self, keys: Sequence[str]) -> Iterator[str]:
        """The ids of those that can be one of the chosen; each once, though a scan may return it again."""
        for identifier in map(record_id, keys):
            if identifier not in self._seen:
                self._seen.add(identifier)
                if self._chosen.may_be(identifier):
                    yield identifier


class Newest:
    """The newest of what is added (or ``oldest``), at most ``limit``; and the ``counts`` of all by the state they read as."""

    def __init__(self, chosen: Chosen, limit: int, *, oldest: bool = False) -> None:
        self._sign = -1 if oldest else 1
        self.counts: Counter[str] = Counter()
        self._chosen = chosen
        self._limit = limit
        self._held: list[tuple[int, str, Claim | None]] = []

    def add(self, identifier: str, held: Claim | None) -> None:
        """Add a record; ``None``: it can't be read."""
        state = UNREADABLE if held is None else held.record.state.value
        if not self._chosen.is_one(held):
            return
        self.counts[state] += 1
        if self._chosen.state in (None, state):
            # An id is there once, so two are never compared further.
            found = (0 if held is None else self._sign * held.record.trace.begun_at_ms, identifier, held)
            (heapq.heappush if len(self._held) < self._limit else heapq.heappushpop)(self._held, found)

    async def rows(self) -> list[dict[str, Any]]:
        """Those that are held, the newest first, or the oldest."""
        ordered = sorted(self._held, key=lambda each: each[:2], reverse=True)
        return [
            {"id": identifier, **({"state": UNREADABLE} if held is None else summarise(held))}
            async for _, identifier, held in in_pieces(ordered, AT_ONCE)
        ]


async def newest(
    records: Records,
    chosen: Chosen,
    *,
    cursor: str = "",
    limit: int = 100,
    most: int = MOST_SCANNED,
    oldest: bool = False,
) -> dict[str, Any]:
    """The newest (or ``oldest``) ``limit`` ``records`` that are ``chosen``, of about ``most`` that are looked at from ``cursor``.

    ``scanned`` is how many those were, ``counts`` how many of them are chosen, by state (of any). ``complete``: they were all
    that there are; else ``cursor`` goes on behind them, to others, which may be newer. It ends after `MOST_SECONDS`, too.

    Raises `NotARecord` for a cursor that is none, `oncegate.cache.errors.CacheError`.
    """
    found, scan = Newest(chosen, limit, oldest=oldest), Scan(records, chosen, cursor)
    async for part in scan.parts(most):
        for identifier, held in part:
            found.add(identifier, held)
    return {
        "records": await found.rows(),
        "cursor": scan.cursor,
        "scanned": scan.scanned,
        "complete": not cursor and not scan.cursor,
        "counts": dict(found.counts),
    }


async def _pages(records: Records, cursor: str) -> AsyncIterator[Page]:
    while True:
        try:
            page = await records.cache.scan(records.namespace, cursor=cursor, limit=_STEP)
        except ValueError as error:
            raise NotARecord(str(error)) from None
        yield page
        cursor = page.cursor
        if not cursor:
            return
