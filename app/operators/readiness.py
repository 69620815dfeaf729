"""Whether requests should be sent here: checks the upstream and the cache, once for all who want to know."""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic

from oncegate.cache.errors import CacheError
from oncegate.cache.store import Cache
from oncegate.middleware.outcome.errors import NotProcessed

KEEP_SECONDS = 1.0
"""A state is checked at most this often, however many probes there are."""
KEEP_WRITING_SECONDS = 5.0
"""The same where a record is written for it."""
PROBE_SECONDS = 2.0
"""A probe that takes longer has failed: a readiness check that hangs is worse than one that says no."""


class Readiness:
    """``probe`` connects to the upstream and raises where it can't; ``write`` raises where the cache takes no record.

    The cache's state is reported, but what passes through doesn't need it: it counts only with ``needs_cache``. While
    ``draining``, the gateway is not ready.
    """

    def __init__(
        self,
        *,
        probe: Callable[[], Awaitable[object]],
        cache: Cache,
        write: Callable[[], Awaitable[object]] | None = None,
        needs_cache: bool = False,
    ) -> None:
        self.draining = False
        self._needs_cache = needs_cache
        self._upstream = _State(probe)
        self._reading = _State(cache.check)
        self._writing = self._reading if write is None else _State(write, KEEP_WRITING_SECONDS)

    def follow(self, probe: Callable[[], Awaitable[object]], *, needs_cache: bool) -> None:
        """Go by another upstream, and by whether the cache counts, from now on."""
        self._upstream = _State(probe)
        self._needs_cache = needs_cache

    @property
    def is_readable(self) -> bool:
        """Whether the cache answered the last check."""
        return self._reading.was_ok

    @property
    def is_writable(self) -> bool:
        """Whether it took a record at the last check."""
        return self._writing.was_ok

    async def check_cache(self) -> None:
        """Check the cache, for `is_readable` and `is_writable`."""
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
