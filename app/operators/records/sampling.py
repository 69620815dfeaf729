"""Counts the records that read unknown, for the metric of that name."""

import asyncio
import logging
from collections.abc import Callable
from time import monotonic

from oncegate.app.operators.records.records import Records
from oncegate.cache.errors import CacheError
from oncegate.cache.record import State

log = logging.getLogger("oncegate.sampling")

_PIECE = 100
_SHARE = 0.1
"""The share of the time that is spent on counting, at most."""


async def sample(records: Records, interval: float, counted: Callable[[int], None]) -> None:
    """Count those that read unknown for ever, ``interval`` seconds after the last count ended; ``counted`` gets each whole one.

    Nothing keeps such a count: a record becomes unknown when its lease lapses, without any event. So all of them are read,
    a bounded number at a time, with pauses that leave the cache to requests.
    """
    while True:
        try:
            counted(await _count_unknown(records))
        except CacheError as error:
            log.warning("unknown records were not counted: %s", error)
        await asyncio.sleep(interval)


async def _count_unknown(records: Records) -> int:
    """How many records read unknown. Raises `oncegate.cache.errors.CacheError`."""
    found: set[str] = set()  # a scan may return a record twice
    cursor = ""
    while True:
        began = monotonic()
        listing = await records.listing(State.UNKNOWN.value, cursor=cursor, limit=_PIECE)
        found.update(record["id"] for record in listing["records"])
        cursor = listing["cursor"]
        if not cursor:
            return len(found)
        await asyncio.sleep((monotonic() - began) * (1 / _SHARE - 1))
