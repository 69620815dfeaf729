"""The newest records of a choice, found by a scan that is bounded: no cache keeps them in the order of their time.

Strategy. An index would cost each first request a command, or a column that is written with it. So records are looked at in the
cache's own order, a few at a time, and only the newest are held. What can be ruled out by its id alone is not read.
"""

import asyncio
import heapq
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

from oncegate.app.operators.records import AT_ONCE, UNREADABLE, NotARecord, Records, in_parts, is_of_route, summarise
from oncegate.cache.record import Claim
from oncegate.cache.store import Page, peek_all
from oncegate.cache.trace import trace_id_of
from oncegate.middleware.rules.key import RECORD_ID, caller_of_id, record_id

CALLER_DIGEST: Final = re.compile(r"[A-Za-z0-9._]{20}")
"""What a record's id has of its caller, behind the colon."""
MOST_SCANNED: Final = 10_000
"""Records that one answer looks at where nothing else is said."""
MOST_SECONDS: Final = 10.0
"""After which an answer ends with what was found."""
_STEP: Final = 200


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which records are wanted: in the ``state`` that they read as, of ``callers`` (digests), of the ``route``, begun at
    ``since_ms`` (Unix time) or later, a part of the trace ``trace_id``.

    ``None``, or 0: any. What a record does not say is not wanted.
    """

    state: str | None = None
    callers: frozenset[str] | None = None
    route: str | None = None
    since_ms: int = 0
    trace_id: str | None = None

    def may_be(self, identifier: str) -> bool:
        """Whether a record of this id can be one of them."""
        own = RECORD_ID.fullmatch(identifier) is not None
        return own and (self.callers is None or caller_of_id(identifier) in self.callers)

    def is_one(self, held: Claim | None) -> bool:
        """Whether it is, in any state; ``None`` is one that can't be read."""
        if held is None:
            return self.route is None and not self.since_ms and self.trace_id is None
        trace = held.record.trace
        if self.trace_id is not None and trace_id_of(trace.span) != self.trace_id:
            return False
        return (self.route is None or is_of_route(trace.route, self.route)) and trace.begun_at_ms >= self.since_ms


class Newest:
    """The newest of what is added (or ``oldest``), at most ``limit``; and the ``counts`` of all by the state they read as."""

    def __init__(self, chosen: Chosen, limit: int, *, oldest: bool = False) -> None:
        self._sign = -1 if oldest else 1
        self.scanned = 0
        self.counts: Counter[str] = Counter()
        self._chosen = chosen
        self._limit = limit
        self._held: list[tuple[int, str, Claim | None]] = []
        self._seen: set[str] = set()

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

    def unseen(self, keys: Sequence[str]) -> Iterator[str]:
        """The ids of those that can be one of the chosen; each once, though a scan may return it again."""
        for identifier in map(record_id, keys):
            if identifier not in self._seen:
                self._seen.add(identifier)
                self.scanned += 1
                if self._chosen.may_be(identifier):
                    yield identifier

    def rows(self) -> list[dict[str, Any]]:
        """Those that are held, the newest first, or the oldest."""
        return [
            {"id": identifier, **({"state": UNREADABLE} if held is None else summarise(held))}
            for _, identifier, held in sorted(self._held, key=lambda each: each[:2], reverse=True)
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
    found, after = Newest(chosen, limit, oldest=oldest), cursor
    ends = monotonic() + MOST_SECONDS
    async for page in _pages(records, cursor):
        after = page.cursor
        for some in in_parts(list(found.unseen(page.keys)), AT_ONCE):
            held = await peek_all(records.cache, [records.key_of(identifier) for identifier in some])
            for identifier, each in zip(some, held, strict=True):
                if each is not None:
                    found.add(identifier, each if isinstance(each, Claim) else None)
        if found.scanned >= most or monotonic() >= ends:
            break
    return {
        "records": found.rows(),
        "cursor": after,
        "scanned": found.scanned,
        "complete": not cursor and not after,
        "counts": dict(found.counts),
    }


async def _pages(records: Records, cursor: str) -> AsyncIterator[Page]:
    while True:
        try:
            page = await records.cache.scan(records.namespace, cursor=cursor, limit=_STEP)
        except ValueError as error:
            raise NotARecord(str(error)) from None
        await asyncio.sleep(0)  # some caches have a page at once
        yield page
        cursor = page.cursor
        if not cursor:
            return
