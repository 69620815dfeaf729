"""`ShadowReport`: the observations of gateways (``shadow = true``), counted from the lines of their logs.

What it keeps is bounded, however long the logs are: of each kind of finding `MOST` different ones are told apart, and
the rest is counted together. Routes, methods and decisions are few; callers may be many.
"""

from collections import Counter, deque
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from oncegate.middleware.admission.gate import GateDecision
from oncegate.middleware.outcome.problem_kinds import KINDS
from oncegate.middleware.rules.keys.key import caller_of_id

LOGGER: Final = "oncegate.shadow"
MOST: Final = 10_000
"""Different findings of a kind that are told apart."""
_EXAMPLES: Final = 3
"""Records that are named of duplicates that are alike."""
_MEMBERS: Final[dict[str, type | tuple[type, ...]]] = {
    "decision": str,
    "status": int,
    "upstream_status": int,
    "record": str,
    "route": str,
    "method": str,
}
"""The members of a line, and their types."""
_TWICE: Final = frozenset({GateDecision.REPLAY, GateDecision.DUPLICATE, GateDecision.IN_FLIGHT})
"""Decisions on a request whose command was executed, or was being executed."""
_NO_REFUSALS: Final = frozenset({"upstream-unreachable", "upstream-failed", "upstream-timeout", "gateway-failed"})
"""Problems that tell of the upstream, and of no decision."""


class ForeignLine(ValueError):
    """A line that is none of a gateway's log in JSON."""


class DamagedLine(ValueError):
    """A line of the log of what was observed that lacks something. The text says what."""


class Tally:
    """Counts of at most `MOST` different things; ``others`` are those of all the rest."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[Any, ...]] = Counter()
        self.others = 0

    def add(self, *what: Any) -> bool:
        """Count one. Whether it is told apart."""
        is_known = what in self.counts or len(self.counts) < MOST
        if is_known:
            self.counts[what] += 1
        else:
            self.others += 1
        return is_known

    def rows(self, *names: str) -> list[dict[str, Any]]:
        """The counts as rows with members of these ``names`` and ``count``, the largest first."""
        ordered = sorted(self.counts.items(), key=lambda each: (-each[1], *map(str, each[0])))
        return [dict(zip(names, what, strict=True)) | {"count": count} for what, count in ordered]


class ShadowReport:
    """The report of what enforcement would have done to the requests that were observed."""

    def __init__(self) -> None:
        self.observed = 0
        self.began: datetime | None = None
        self.ended: datetime | None = None
        self._requests = Tally()
        self._by_route: Counter[tuple[str, str]] = Counter()
        self._without_keys = Tally()
        self._refused = Tally()
        self._reused = Tally()
        self._twice = Tally()
        self._examples: dict[tuple[Any, ...], deque[str]] = {}
        self._headers = Tally()

    def add(self, line: bytes) -> None:
        """Count a line of a log. Raises `ForeignLine` or `DamagedLine`; a gateway's other lines are none of its business."""
        begin = line.find(b"{")  # some collectors put a name before it
        try:
            event = orjson.loads(line[begin:]) if begin >= 0 else None
        except orjson.JSONDecodeError:
            event = None
        if not isinstance(event, dict):
            raise ForeignLine
        if event.get("logger") == LOGGER and "decision" in event:
            for name, kind in _MEMBERS.items():
                if not isinstance(event.get(name), kind):
                    raise DamagedLine(f"a line of {LOGGER} has no {name} that could be read")
            self._count(event)

    def _count(self, event: dict[str, Any]) -> None:
        route, method, decision = event["route"], event["method"], event["decision"]
        status, upstream, record = event["status"], event["upstream_status"], event["record"]
        self.observed += 1
        time = _instant(event.get("time"))
        if time is not None:
            self.began = min(self.began or time, time)
            self.ended = max(self.ended or time, time)
        self._requests.add(route, method, decision)
        self._by_route[route, method] += 1
        if decision == "key-missing" or (decision == GateDecision.BYPASS and not record):
            self._without_keys.add(route, method)
        if decision in KINDS and decision not in _NO_REFUSALS:
            self._refused.add(route, decision, status, upstream)
        if decision == GateDecision.MISMATCH:
            self._reused.add(caller_of_id(record), route)
        if decision in _TWICE and upstream:
            self._count_twice(event)

    def _count_twice(self, event: dict[str, Any]) -> None:
        route, differs = event["route"], _texts(event.get("differs"))
        first = event.get("first_status")
        what = route, event["decision"], first if isinstance(first, int) else None, event["upstream_status"], differs
        if self._twice.add(*what):
            self._examples.setdefault(what, deque(maxlen=_EXAMPLES)).append(event["record"])
        for name in _texts(event.get("headers")):
            self._headers.add(route, name)

    def document(self) -> dict[str, Any]:
        """All of it as JSON. ``requests`` are the counts that ``oncegate_requests_total`` would have had under enforcement."""
        without = self._without_keys.rows("route", "method")
        twice = self._twice.rows("route", "decision", "first_status", "status", "differs")
        for row in twice:
            row["records"] = list(self._examples[tuple(row[name] for name in _OF_TWICE)])
        tallies = self._requests, self._without_keys, self._refused, self._reused, self._twice, self._headers
        return {
            "observed": self.observed,
            "from": None if self.began is None else self.began.isoformat(),
            "until": None if self.ended is None else self.ended.isoformat(),
            "requests": self._requests.rows("route", "method", "decision"),
            "without_keys": [row | {"of": self._by_route[row["route"], row["method"]]} for row in without],
            "refused": self._refused.rows("route", "decision", "status", "upstream_status"),
            "reused": self._reused.rows("caller", "route"),
            "executed_twice": twice,
            "differing_headers": self._headers.rows("route", "header"),
            "not_told_apart": sum(tally.others for tally in tallies),
        }


_OF_TWICE: Final = ("route", "decision", "first_status", "status", "differs")


def _instant(given: Any) -> datetime | None:
    """When a line was written; ``None`` where it doesn't say so in a way that could be read."""
    try:
        return datetime.fromisoformat(given).astimezone(UTC) if isinstance(given, str) else None
    except ValueError:
        return None


def _texts(given: Any) -> tuple[str, ...]:
    """A member that is a list of texts; without one, none."""
    return tuple(str(each) for each in given) if isinstance(given, Sequence) and not isinstance(given, str) else ()
