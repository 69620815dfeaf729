"""Unknown outcomes, resolved or released by their choice instead of one by one: for the API, the command line and the console.

Strategy. Nothing runs on by itself. An answer changes a bounded number of records, says how far it got, and the next one goes on
from there: so a job is in whoever drives it, is seen by nobody else, and ends when they stop. A gateway that is lost or reloaded
loses nothing of it. What is meant is fixed by an instant: what has become unknown since was seen by nobody, and stays.
"""

import asyncio
from contextlib import aclosing
from dataclasses import asdict, dataclass, replace
from time import monotonic
from typing import Any, Final

from oncegate.app.operators.audit import Author, resolved
from oncegate.app.operators.audit_lines import AuditLines, report
from oncegate.app.operators.records.newest import MOST_SCANNED, Chosen, Scan
from oncegate.app.operators.records.records import Records
from oncegate.app.operators.records.resolving import resolve_and_report
from oncegate.cache.record import Claim, State
from oncegate.cache.transitions import Resolution, ResolveRequest
from oncegate.middleware.outcome.instants import instant
from oncegate.middleware.outcome.responses import now_ms

STEP_SECONDS: Final = 2.0
"""After which an answer ends with what is done by then."""
MOST_CHANGED: Final = 1000
"""Records after which it does; it may be a few more."""


@dataclass(frozen=True, slots=True)
class UnknownAt:
    """A choice of unknown outcomes: those that read unknown before ``at_ms`` (Unix time), of the ``route`` and the ``callers``
    (digests), whose attempt began at most ``since`` seconds before then, and more than ``older`` seconds before.

    ``None``, or 0: any.
    """

    at_ms: int
    route: str | None = None
    callers: frozenset[str] | None = None
    since: float = 0.0
    older: float = 0.0

    def chosen(self) -> Chosen:
        """The same, but for how long they have been unknown."""
        since_ms = max(1, self.at_ms - round(self.since * 1000)) if self.since else 0
        before_ms = max(1, self.at_ms - round(self.older * 1000)) if self.older else 0
        return Chosen(State.UNKNOWN.value, self.callers, self.route, since_ms, before_ms=before_ms)

    def was_unknown(self, held: Claim, now: int) -> bool:
        """Whether an unknown record, read at ``now``, was so then. One that doesn't say since when it is, was not."""
        return 0 < unknown_since_ms(held, now) < self.at_ms

    def words(self) -> str:
        """The choice as audit lines name it, in one line."""
        parts = [f"until {instant(self.at_ms)}"]
        parts += [f"begun within {self.since:g} s"] * bool(self.since)
        parts += [f"begun more than {self.older:g} s ago"] * bool(self.older)
        parts += [f"caller {digest}" for digest in sorted(self.callers or ())]
        parts += [f"route {self.route}"] * (self.route is not None)
        return "".join(each if each.isprintable() else "?" for each in ", ".join(parts))


@dataclass(slots=True)
class UnknownChanges:
    """An answer's outcome: how many records were looked at (``scanned``), were meant (``found``), and are ``resolved``.

    ``refused``: others have changed them between the look and the change. ``left``: of unknown outcome, but not at that instant,
    or they don't say since when. With ``cursor`` it goes on, until it is ``complete``.
    """

    scanned: int = 0
    found: int = 0
    resolved: int = 0
    refused: int = 0
    left: int = 0
    cursor: str = ""
    complete: bool = False


def unknown_since_ms(held: Claim, now: int) -> int:
    """The Unix time at which an unknown record became so; 0: it doesn't say. ``now`` is the time at which it was read.

    A lapsed one says how long ago, by the cache's clock; the others the time, by that of the gateway that wrote them.
    """
    record = held.record
    if record.lapsed:
        return now + held.remaining_ms - record.retention_ms
    if record.response is not None:
        return record.response.completed_at_ms
    trace = record.trace
    return 0 if trace.took_ms is None or not trace.begun_at_ms else trace.begun_at_ms + trace.took_ms


async def change_unknown(
    records: Records,
    audit: AuditLines | None,
    which: UnknownAt,
    request: ResolveRequest,
    author: Author,
    *,
    cursor: str = "",
    most: int = MOST_SCANNED,
    dry_run: bool = False,
    seconds: float = STEP_SECONDS,
) -> dict[str, Any]:
    """Resolve those of ``which`` that are among about ``most`` from ``cursor`` on, each as a single one is resolved: the attempt
    that was read, with its note and its line of the log. `UnknownChanges`, as a document, with the ``until`` that ``which`` has.

    With ``dry_run`` they are counted. In the audit is one line for all. It ends after `MOST_CHANGED` and ``seconds``, too.

    Raises `oncegate.app.operators.records.records.NotARecord`, `oncegate.cache.errors.CacheError`: what was resolved by then
    stays so.
    """
    chosen = which.chosen()
    scan, done, ends = Scan(records, chosen, cursor), UnknownChanges(), monotonic() + seconds
    try:
        async with aclosing(scan.parts(most, seconds)) as parts:
            at, left = scan.cursor, 0
            async for part in parts:
                now = now_ms()
                if scan.cursor != at:
                    at, left = scan.cursor, done.left
                for identifier, held in part:
                    if held is None or held.record.state is not State.UNKNOWN or not chosen.is_one(held):
                        continue
                    if not which.was_unknown(held, now):
                        done.left += 1
                        continue
                    done.found += 1
                    if not dry_run:
                        # The attempt that was read: a takeover may come between.
                        exactly = replace(request, attempt=held.record.attempt)
                        answer = await resolve_and_report(records, None, identifier, exactly, author)
                        done.resolved += answer is Resolution.RESOLVED
                        done.refused += answer is not Resolution.RESOLVED
                        await asyncio.sleep(0)  # some caches answer at once
                if done.resolved >= MOST_CHANGED or (done.resolved and monotonic() >= ends):
                    # Perhaps within a page, which is begun again: what was resolved is not unknown any more, what is left is.
                    done.left = left
                    break
            else:
                done.complete = not scan.cursor
    finally:
        if done.resolved:
            what = f"{done.resolved} records of unknown outcome ({which.words()})"
            await report(audit, author, what, resolved(request))
    done.scanned, done.cursor = scan.scanned, scan.cursor
    return asdict(done) | {"until": instant(which.at_ms)}
