"""Who was refused in the last minutes, by caller's digest, route and problem: counted where one is, in bounded memory.

Strategy. Each worker has a table for each of the last minutes, in memory that all of them share, so that any of them can add them
up. A table has a fixed number of rows: with more callers than that, the newest takes the place of the one that comes least often,
and goes on from its rank (Space-Saving: Metwally, Agrawal, El Abbadi, 2005). So whoever is refused often has a row, however many
callers come once; what a row has lost by that is in the table's total alone, and every number that is shown is of refusals that
were counted for that row.
"""

import asyncio
import mmap
import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from heapq import nsmallest
from time import monotonic
from typing import Any, Final, NamedTuple

from oncegate.app.telemetry.recent import MOST_MINUTES
from oncegate.middleware.admission.request import gateway_id
from oncegate.middleware.http.keyed_request import MISMATCHED, KeyedRequest
from oncegate.middleware.outcome.instants import instant
from oncegate.middleware.outcome.problem_kinds import KINDS
from oncegate.middleware.outcome.responses import now_ms
from oncegate.middleware.rules.keys.key import caller_of_id, scope_digest, scope_parts

STATUSES: Final = {slug: kind.status for slug, kind in KINDS.items() if kind.status in (400, 409, 422, 429)}
"""The problems that are counted, each with its status: those of a key and of what its caller does with it."""
ROWS: Final = 128
"""Callers' rows of a minute, of each worker: one for each caller, route and problem."""
_MINUTE: Final = 60.0
_TABLES: Final = MOST_MINUTES + 1
_DECISIONS: Final = (*STATUSES, MISMATCHED)
_HEAD: Final = struct.Struct("<QQ")
"""The minute of a table, and how many refusals it has seen."""
_ROW: Final = struct.Struct("<20sIIII")
"""A caller's digest (empty: not known), a route's number, a problem's, the row's rank, and its count."""
_COUNT: Final = struct.Struct("<I")
_TABLE_BYTES: Final = _HEAD.size + ROWS * _ROW.size
_WORKER_BYTES: Final = _TABLES * _TABLE_BYTES
_AT_ONCE: Final = 8
"""Tables that are read before the event loop goes on with others' work: 1,024 rows."""
MOST_CALLERS: Final = 500
"""The most callers of one listing."""
_CALLERS_AT_ONCE: Final = 500
"""The same of callers that are put into their order."""


class RefusalRow(NamedTuple):
    """Who was refused what: the caller's digest (empty where it isn't known), a route's number, and a problem's."""

    caller: str
    route: int
    decision: int


class Refusals:
    """The refusals of ``workers``. To be made before they are forked; each then calls `enter`, and `serve` with the same routes
    in the same order.
    """

    def __init__(self, workers: int = 1) -> None:
        self._workers = workers
        self._all = mmap.mmap(-1, workers * _WORKER_BYTES)
        self._routes: dict[str, int] = {}
        self._decisions = {decision: number for number, decision in enumerate(_DECISIONS)}
        self._began = monotonic()
        self.enter(0)

    def enter(self, index: int) -> None:
        """This process is worker ``index`` from now on, and goes on where its predecessor has ended."""
        self._first = index * _WORKER_BYTES
        self._minute = -1
        self._rows: dict[RefusalRow, int] = {}
        self._ranks: list[int] = []
        self._counts: list[int] = []
        self._total = 0

    def serve(self, routes: Iterable[str]) -> None:
        """Requests are of these routes' patterns from now on. What was counted of others stays."""
        for route in routes:
            self._routes.setdefault(route, len(self._routes))

    # -- counting -----------------------------------------------------------------------------------------------------

    def count(self, request: KeyedRequest, decision: str) -> None:
        """Count one request that was refused, if it was for its key or for what its caller does with it."""
        number, route = self._decisions.get(decision), self._routes.get(request.policy.route)
        if number is not None and route is not None:
            self._add(RefusalRow(caller_of(request), route, number))

    def _add(self, who: RefusalRow) -> None:
        minute = int(monotonic() // _MINUTE)
        if minute != self._minute:
            self._begin(minute)
        row = self._rows.get(who)
        if row is None:
            row = self._row_for(who)
        self._total += 1
        self._ranks[row] += 1
        self._counts[row] += 1
        at = self._table(minute)
        _ROW.pack_into(
            self._all,
            at + _HEAD.size + row * _ROW.size,
            who.caller.encode(),
            who.route,
            who.decision,
            self._ranks[row],
            self._counts[row],
        )
        _HEAD.pack_into(self._all, at, minute, self._total)

    def _row_for(self, who: RefusalRow) -> int:
        """A row for one that has none: a free one, else that of the lowest rank."""
        row = len(self._ranks)
        if row < ROWS:
            self._ranks.append(0)
            self._counts.append(0)
        else:
            last = min(self._rows, key=lambda each: self._ranks[self._rows[each]])
            row = self._rows.pop(last)
            self._counts[row] = 0
            # Whoever reads meanwhile must not take its count for the new one's.
            at = self._table(self._minute) + _HEAD.size + (row + 1) * _ROW.size - _COUNT.size
            _COUNT.pack_into(self._all, at, 0)
        self._rows[who] = row
        return row

    def _begin(self, minute: int) -> None:
        """Count in the table of ``minute``: an empty one, unless this worker's predecessor has begun it."""
        at = self._table(minute)
        self._minute, self._rows, self._ranks, self._counts = minute, {}, [], []
        begun, self._total = _HEAD.unpack_from(self._all, at)
        if begun != minute:
            self._all[at : at + _TABLE_BYTES] = bytes(_TABLE_BYTES)
            self._total = 0
            return
        for who, rank, count in self._read(at):
            self._rows[who] = len(self._ranks)
            self._ranks.append(rank)
            self._counts.append(count)

    def _table(self, minute: int) -> int:
        """Where this worker's table of ``minute`` begins."""
        return self._first + minute % _TABLES * _TABLE_BYTES

    def _read(self, at: int) -> Iterable[tuple[RefusalRow, int, int]]:
        """The rows of a table, each with its rank and its count."""
        rows = self._all[at + _HEAD.size : at + _TABLE_BYTES]
        for caller, route, decision, rank, count in _ROW.iter_unpack(rows):
            if rank:
                yield RefusalRow(caller.rstrip(b"\0").decode(), route, decision), rank, count

    # -- shown --------------------------------------------------------------------------------------------------------

    async def listing(self, minutes: int, most: int) -> dict[str, Any]:
        """The ``callers`` that were refused most often in the last ``minutes``, ``most`` at most, each by route and problem.

        They are those ``since`` an instant, ``seconds`` ago: up to a minute more, or less where the gateway has not run for so
        long. ``refused`` is how many refusals there were in all, ``others`` how many of them are in no row here.
        ``process`` is who answers.
        """
        now = monotonic()
        first = int(now // _MINUTE) - minutes
        seconds = now - max(first * _MINUTE, self._began)
        found, refused = await self._counted(first, first + minutes)
        shown: list[str] = []
        known, routes = list(found), list(self._routes)
        for begin in range(0, len(known), _CALLERS_AT_ONCE):
            some = [*shown, *known[begin : begin + _CALLERS_AT_ONCE]]
            shown = nsmallest(most, some, key=lambda caller: (-found[caller].total(), caller))
            await asyncio.sleep(0)
        callers: list[dict[str, Any]] = [
            {"caller": caller or None, "count": found[caller].total(), "routes": _by_route(found[caller], routes)}
            for caller in shown
        ]
        return {
            "since": instant(now_ms() - round(seconds * 1000)),
            "seconds": seconds,
            "process": gateway_id(),
            "refused": refused,
            "others": max(0, refused - sum(each["count"] for each in callers)),
            "callers": callers,
        }

    async def _counted(self, first: int, last: int) -> tuple[dict[str, Counter[RefusalRow]], int]:
        """The refusals in the tables of these minutes, by caller, and how many they have seen, of all workers."""
        found: dict[str, Counter[RefusalRow]] = {}
        refused = 0
        for number, at in enumerate(range(0, self._workers * _WORKER_BYTES, _TABLE_BYTES)):
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
            minute, total = _HEAD.unpack_from(self._all, at)
            if total and first <= minute <= last:
                refused += total
                for who, _, count in self._read(at):
                    if count:
                        found.setdefault(who.caller, Counter())[who] += count
        return found, refused


def _by_route(counts: Counter[RefusalRow], routes: Sequence[str]) -> list[dict[str, Any]]:
    """A caller's rows: one for each route, with its counts by problem, the most frequent first."""
    of_route: dict[str, Counter[str]] = {}
    for who, count in counts.items():
        of_route.setdefault(routes[who.route], Counter())[_DECISIONS[who.decision]] += count
    rows: list[dict[str, Any]] = [
        {"route": route, "count": each.total(), "decisions": dict(sorted(each.items()))}
        for route, each in of_route.items()
    ]
    return sorted(rows, key=lambda row: (-row["count"], row["route"]))


def caller_of(request: KeyedRequest) -> str:
    """The digest of a request's caller, as its records' ids have it behind the colon.

    Empty where the request was refused before that was known, and only a token or the app says it.
    """
    if request.record:
        return caller_of_id(request.record)
    door, policy = request.door, request.policy
    if door.caller is not None or policy.claims:
        return ""
    return scope_digest(scope_parts(request.fields, policy.scope_names), door.digests)
