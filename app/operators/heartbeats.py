"""Which processes of a namespace are up: each keeps an entry in the cache, which goes once it is not kept again.

Strategy. A process writes its entry once in `PERIOD` seconds, by a task beside its requests, and never on the way of one. The
entry lives for three of those: who was killed is gone by then, who stops removes it. With nobody looking that is one command to
the cache for each process and period. Where the cache takes none, nothing else suffers by it.

The entry of a gateway's first worker has what all of its workers decided lately, since they count in shared memory.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import orjson

from oncegate import __version__
from oncegate.app.turns import in_pieces
from oncegate.app.version import build
from oncegate.cache.errors import CacheError
from oncegate.cache.store import Cache, KeepsProcesses, KeptProcess
from oncegate.middleware.outcome.instants import instant
from oncegate.middleware.outcome.responses import now_ms

log = logging.getLogger("oncegate.operators")

PERIOD: Final = 10.0
"""Seconds between two entries of a process."""
TTL_MS: Final = 30_000
"""For how long an entry is kept."""
MINUTES: Final = 5
"""Of how many minutes an entry has decisions."""
MOST_ROWS: Final = 100
"""Rows of decisions in an entry, the most frequent."""
STOP_SECONDS: Final = 1.0
"""How long the end of a process waits for its entry to be removed."""
_MOST_TEXT: Final = 200
_AT_ONCE: Final = 5
"""Entries that are read before others have the loop: each may have `MOST_ROWS`."""
_TEXTS: Final = ("name", "kind", "gateway", "version", "build", "configuration", "reads")
_MOST_COUNT: Final = 2**53
"""The largest count that is believed: a sum of these still fits into JSON, whoever has written them."""
_AHEAD_MS: Final = 86_400_000
"""An entry that claims to live for longer is none."""


class Heartbeat:
    """The entry of this process in the ``cache``, from `start` to `stop`; none, where the cache keeps no such entries.

    - ``name``: ``host/pid``, as in the records that the process makes.
    - ``entry``: what there is to say of it as of now: ``kind`` (gateway or worker), ``gateway`` (what all workers of one have in
      common), ``configuration`` (its digest), ``reads`` (a worker's stream); ``decisions``, if it is to have `shortened` ones.
    """

    def __init__(self, cache: Cache, namespace: str, name: str, entry: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        self._cache = cache if isinstance(cache, KeepsProcesses) else None
        self._namespace = namespace
        self._name = name
        self._entry = entry
        self._always = {"name": name, "version": __version__, "build": build(), "started": now_ms(), "ttl": TTL_MS}
        self._beating: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, in this process."""
        if self._beating is None and self._cache is not None:
            self._beating = asyncio.create_task(self._beat(self._cache))

    async def stop(self) -> None:
        """Remove the entry, within `STOP_SECONDS`: this process is up no more."""
        beating, self._beating = self._beating, None
        if beating is None or self._cache is None:
            return
        beating.cancel()
        with suppress(asyncio.CancelledError):
            await beating
        with suppress(CacheError, OSError, TimeoutError):  # it goes by itself
            async with asyncio.timeout(STOP_SECONDS):
                await self._cache.forget_process(self._namespace, self._name)

    async def _beat(self, cache: KeepsProcesses) -> None:
        was_kept = True
        while True:
            was_kept = await self._keep(cache, was_kept)
            await asyncio.sleep(PERIOD)

    async def _keep(self, cache: KeepsProcesses, was_kept: bool) -> bool:
        try:
            entry = orjson.dumps(self._always | await self._entry())
            await cache.keep_process(self._namespace, self._name, entry, ttl_ms=TTL_MS)
        except CacheError as error:
            if was_kept:  # once, until it is kept again: what else needs the cache says so by itself
                log.info("that this process is up can't be kept, and others don't see it: %s", error)
            return False
        except Exception:  # a fault of ours, or of a cache of one's own: nothing else is to suffer by it
            if was_kept:
                log.exception("that this process is up can't be kept")
            return False
        return True


def shortened(recent: Mapping[str, Any]) -> dict[str, Any]:
    """The decisions of an entry: `MOST_ROWS` of what `oncegate.app.telemetry.recent.RecentDecisions.listing` has."""
    rows = recent["decisions"]
    return {
        "seconds": recent["seconds"],
        "rows": [[row["route"], row["decision"], row["mode"], row["count"]] for row in rows[:MOST_ROWS]],
        "more": len(rows) > MOST_ROWS,
    }


async def processes(cache: KeepsProcesses, namespace: str) -> dict[str, Any]:
    """The ``processes`` that are up, gateways first, and what all gateways decided lately, added up.

    Raises `oncegate.cache.errors.CacheError`.
    """
    at = now_ms()
    entries = in_pieces(await cache.processes(namespace), _AT_ONCE)
    found = [row async for kept in entries if (row := _read(kept, at)) is not None]
    found.sort(key=lambda row: (row["kind"], row["gateway"], row["name"]))
    decided = [row for row in found if row["decisions"] is not None]
    counts: Counter[tuple[str, str, str]] = Counter()
    for row in decided:
        for route, decision, mode, count in row["decisions"]["rows"]:
            counts[route, decision, mode] += count
    rows = [
        {"route": route, "decision": decision, "mode": mode, "count": count}
        for (route, decision, mode), count in sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    ]
    return {
        "processes": [{name: value for name, value in row.items() if name != "decisions"} for row in found],
        "minutes": MINUTES,
        "decisions": rows,
        "decisions_of": [row["gateway"] for row in decided],
        "complete": not any(row["decisions"]["more"] for row in decided),
        "differences": differences(found),
    }


def differences(found: list[dict[str, Any]]) -> list[str]:
    """The differences between processes of one kind that should have none, a line each."""
    lines = []
    for kind in sorted({row["kind"] for row in found}):
        for name, word in (("configuration", "configurations"), ("version", "versions"), ("build", "builds")):
            of: dict[str, list[str]] = {}
            for row in found:
                if row["kind"] == kind:
                    of.setdefault(row[name], []).append(row["name"])
            if len(of) > 1:
                each = "; ".join([f"{value} in {_some(names)}" for value, names in sorted(of.items())])
                lines.append(f"{kind}s run {len(of)} {word}: {each}")
    return lines


def _some(names: list[str]) -> str:
    return ", ".join(sorted(names)[:3]) + (f" and {len(names) - 3} others" if len(names) > 3 else "")


def _read(kept: KeptProcess, at: int) -> dict[str, Any] | None:
    """An entry as it is shown; ``None`` for what is none, whoever has written it."""
    try:
        members = orjson.loads(kept.entry)
        texts = {name: str(members.get(name, ""))[:_MOST_TEXT] for name in _TEXTS}
        ttl, started = members["ttl"], members["started"]
        if not texts["name"] or type(started) is not int or type(ttl) is not int or not 0 < ttl < _AHEAD_MS:
            return None
        silent = min(max(0, ttl - kept.remaining_ms), max(0, at - started))  # its cache rounds, too
        row = texts | {"started": instant(started), "last_seen": instant(at - silent), "silent_for": silent / 1000}
        return row | {"decisions": _decisions(members["decisions"]) if "decisions" in members else None}
    except (orjson.JSONDecodeError, LookupError, TypeError, ValueError, AttributeError):
        return None


def _decisions(given: Any) -> dict[str, Any]:
    rows = [
        (
            str(route)[:_MOST_TEXT],
            str(decision)[:_MOST_TEXT],
            "shadow" if mode == "shadow" else "enforced",
            min(int(count), _MOST_COUNT),
        )
        for route, decision, mode, count in given["rows"][:MOST_ROWS]
    ]
    return {"rows": rows, "more": bool(given["more"])}
