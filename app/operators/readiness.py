"""Whether requests should be sent here: checks the upstream and the cache, once for all who want to know."""

import asyncio
import os
import re
import secrets
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Protocol

from oncegate.cache.errors import CacheError, CacheRefused
from oncegate.cache.record import FINGERPRINT_BYTES, TOKEN_BYTES, ClaimRequest, Record, State
from oncegate.cache.store import Cache
from oncegate.cache.transitions import ResolveRequest
from oncegate.middleware.outcome.errors import NotProcessed
from oncegate.middleware.rules.key import key_of_id

KEEP_SECONDS = 1.0
"""A state is checked at most this often, however many probes there are."""
KEEP_WRITING_SECONDS = 5.0
"""The same where a record is written for it."""
PROBE_SECONDS = 2.0
"""A probe that takes longer has failed: a readiness check that hangs is worse than one that says no."""


class Checkable(Protocol):
    """The part of a cache that is needed here."""

    async def check(self) -> list[str]:
        """Raises a `CacheError` where the cache can't be used."""
        ...


class Readiness:
    """``probe`` connects to the upstream and raises where it can't; ``write`` raises where the cache takes no record.

    The cache's state is reported, but what passes through doesn't need it: it counts only with ``needs_cache``. While
    ``draining``, the gateway is not ready.
    """

    def __init__(
        self,
        *,
        probe: Callable[[], Awaitable[object]],
        cache: Checkable,
        write: Callable[[], Awaitable[object]] | None = None,
        needs_cache: bool = False,
    ) -> None:
        self.draining = False
        self._needs_cache = needs_cache
        self._upstream = _State(probe)
        self._reading = _State(cache.check)
        self._writing = self._reading if write is None else _State(write, KEEP_WRITING_SECONDS)

    @property
    def is_readable(self) -> bool:
        """Whether the cache answered the last check."""
        return self._reading.was_ok

    @property
    def is_writable(self) -> bool:
        """Whether it took a record at the last check."""
        return self._writing.was_ok

    async def check_cache(self) -> None:
        """For `is_readable` and `is_writable`."""
        await asyncio.gather(self._reading.ok(), self._writing.ok())

    def health(self) -> tuple[int, dict[str, str]]:
        """The answer to ``healthz``, a status and the members of the body: the process is up."""
        return 200, {"status": "up"}

    async def check(self) -> tuple[int, dict[str, str]]:
        """The answer to ``readyz``: 200 where the gateway is ready, else 503, and why."""
        states = self._upstream.ok(), self._reading.ok(), self._writing.ok()
        upstream, reading, writing = await asyncio.gather(*states)
        ready = upstream and not self.draining and ((reading and writing) or not self._needs_cache)
        return 200 if ready else 503, {
            "status": "draining" if self.draining else "ready" if ready else "not ready",
            "upstream": "reachable" if upstream else "unreachable",
            "cache": "unavailable" if not reading else "available" if writing else "read-only",
        }


class _State:
    """Whether something can be reached, checked once for all requests within ``keep`` seconds (`KEEP_SECONDS`)."""

    def __init__(self, check: Callable[[], Awaitable[object]], keep: float | None = None) -> None:
        self.was_ok = False
        self._check = check
        self._keep = keep
        self._checked: asyncio.Task[bool] | None = None
        self._until = 0.0

    async def ok(self) -> bool:
        if self._checked is None or (self._checked.done() and monotonic() >= self._until):
            self._checked = asyncio.create_task(self._reach())
        # A probe whose client goes away must not take the answer from the others.
        return await asyncio.shield(self._checked)

    async def _reach(self) -> bool:
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                self.was_ok = await self._check() is not False
        except (CacheError, OSError, TimeoutError, NotProcessed):
            self.was_ok = False
        finally:
            self._until = monotonic() + (KEEP_SECONDS if self._keep is None else self._keep)
        return self.was_ok


LASTS_MS = 5000
"""For which the record is there at most, where it can't be removed any more."""

_WHAT_TO_DO = {
    "OOM": "raise maxmemory, or keep records for a shorter time (ttl)",
    "READONLY": "use the primary's address, or Sentinel's",
    "NOPERM": "let the user run EVALSHA and SCRIPT LOAD, and read and write the keys NAMESPACE:* and {NAMESPACE:*",
    "MISCONF": "see Redis's log and its disk: it takes writes again when it can save",
    "NOREPLICAS": "bring replicas back, or lower min-replicas-to-write",
    "CLUSTERDOWN": "see CLUSTER INFO: a part of the slots is served by nobody",
}


async def try_writing(cache: Cache, namespace: str) -> None:
    """Make a record and remove it. Raises `CacheError`, whose text says what to do where that is known."""
    key = key_of_id(namespace, f"{secrets.token_hex(10)}:{secrets.token_hex(10)}")
    token, fingerprint = os.urandom(TOKEN_BYTES), bytes(FINGERPRINT_BYTES)
    try:
        claim = await cache.claim(
            key,
            ClaimRequest(token=token, fingerprint=fingerprint, lease_ms=LASTS_MS, retention_ms=0, takeover=frozenset()),
        )
        completed = claim.won and await cache.complete(
            key,
            Record(token=token, fingerprint=fingerprint, attempt=1, state=State.UNKNOWN, response=None),
            ttl_ms=LASTS_MS,
        )
        if not completed:
            raise CacheRefused("a new record was not taken: somebody else has it")
        await cache.resolve(key, ResolveRequest(None))
    except CacheError as error:
        kind = re.search(r"\b[A-Z]{3,}\b(?=$| \()", str(error))
        todo = _WHAT_TO_DO.get(kind[0]) if kind else None
        if todo is None:
            raise
        raise type(error)(f"{error}; {todo.replace('NAMESPACE', namespace)}") from error
