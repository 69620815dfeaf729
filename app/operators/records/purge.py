"""Purges records: of one caller, of one route, or older than a given time (``oncegate keys purge``)."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from oncegate.app.operators.records.records import in_parts, is_of_route
from oncegate.cache.errors import RecordUnreadable
from oncegate.cache.record import Claim, Record, State
from oncegate.cache.store import Purges
from oncegate.cache.transitions import Resolution
from oncegate.middleware.rules.keys.key import RECORD_ID, caller_of_id, record_id

STEP = 500
AT_ONCE = 50


@dataclass(frozen=True, slots=True)
class Which:
    """A choice of records to purge: of the ``callers`` (digests of their scopes), or of ``route``, or both; ``None``: of any.

    ``before_ms`` (Unix time): only those that were completed before, or begun where nothing says when that was; by the clocks of
    the gateways that made them. Those of which neither is known are not older than anything. 0: of any age.

    Those that are in flight, or of unknown outcome, only with ``force``.
    """

    callers: frozenset[str] | None
    route: str | None
    force: bool = False
    before_ms: int = 0

    def may_be(self, identifier: str) -> bool:
        """Whether a record of this id can be one of them."""
        own = RECORD_ID.fullmatch(identifier) is not None
        return own and (self.callers is None or caller_of_id(identifier) in self.callers)

    def is_one(self, held: Claim) -> bool:
        """Whether it is. A record without a route is no route's."""
        if self.before_ms and not 0 < _written_ms(held.record) < self.before_ms:
            return False
        return self.route is None or is_of_route(held.record.trace.route, self.route)


@dataclass(slots=True)
class Purged:
    """How many were read (``seen``), ``found``, ``removed``, left as ``unfinished``; ``unreadable`` ones are left, too."""

    seen: int = 0
    found: int = 0
    removed: int = 0
    unfinished: int = 0
    unreadable: int = 0


async def purge(
    cache: Purges,
    namespace: str,
    which: Which,
    *,
    dry_run: bool = False,
    progress: Callable[[Purged], None] = lambda _: None,
) -> Purged:
    """Go through all of ``namespace``, a bounded number of records at a time, and remove those of ``which``; returns the counts.

    Raises `oncegate.cache.errors.CacheError`: what was removed until then stays removed.
    """
    purged, cursor = Purged(), ""
    while True:
        page = await cache.scan(namespace, cursor=cursor, limit=STEP)
        purged.seen += len(page.keys)
        for some in in_parts([key for key in page.keys if which.may_be(record_id(key))], AT_ONCE):
            await asyncio.gather(*[_purge(cache, key, which, purged, dry_run=dry_run) for key in some])
        progress(purged)
        cursor = page.cursor
        if not cursor:
            return purged


async def _purge(cache: Purges, key: str, which: Which, purged: Purged, *, dry_run: bool) -> None:
    try:
        held = await cache.peek(key)
    except RecordUnreadable:
        purged.unreadable += 1
        return
    if held is None or not which.is_one(held):
        return
    purged.found += 1
    if held.record.state not in (State.SUCCEEDED, State.FAILED) and not which.force:
        purged.unfinished += 1
    elif not dry_run:
        resolution = await cache.purge(key, held.record, force=which.force)
        purged.removed += resolution is Resolution.RESOLVED
        purged.unfinished += resolution in (Resolution.IN_FLIGHT, Resolution.OTHER_ATTEMPT)


def _written_ms(record: Record) -> int:
    """The instant of a record's completion, else of its begin (Unix time); 0: not known."""
    return record.response.completed_at_ms if record.response is not None else record.trace.begun_at_ms
