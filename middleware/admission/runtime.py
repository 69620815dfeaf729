"""What an attempt needs of its process: the cache, time limits, background tasks, and the user's `Watch`."""
# Compiled: docs/decisions/0012-compiled.md

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from time import monotonic
from typing import Any, Final, TypeVar

from oncegate.cache.errors import CacheError
from oncegate.cache.record import State
from oncegate.cache.store import Cache, prompt
from oncegate.middleware.admission.deadlines import LoopDeadlines
from oncegate.middleware.admission.observe import Watch

log = logging.getLogger("oncegate.attempt")

Answer = TypeVar("Answer")

FAILED: Final = "the watch failed"
NOBODY: Final = Watch()
"""The watch that does nothing: not called for each request."""


class Runtime:
    """Attempts know `oncegate.middleware.admission.in_flight.InFlight` as this: it owns them, and they don't know how."""

    def __init__(self, cache: Cache, watch: Watch | None) -> None:
        self.cache = cache
        self.prompt = prompt(cache)
        self.watch = watch or NOBODY
        self.limits = LoopDeadlines()
        self._background: set[asyncio.Task[None]] = set()

    def end(self, attempt: Any) -> None:
        """The attempt runs no more: its slot is free as soon as its outcome is ``visible``. Later calls do nothing."""
        raise NotImplementedError

    def keep_trying(self, attempt: Any) -> None:
        """Retry recording the outcome of ``attempt`` until the cache takes it; bounded in bytes: then without the body."""
        raise NotImplementedError

    def notify(self, event: Callable[..., None], *what: object) -> None:
        """Call one of ``watch``'s methods; its errors are only logged."""
        try:
            event(*what)
        except Exception:  # a user's watch must not decide about a payment
            log.exception(FAILED)

    def decided(self, route: str, state: State | None, seconds: float) -> None:
        """Notify ``watch`` of an outcome."""
        if self.watch is NOBODY:
            return
        try:
            self.watch.attempt_settled(route, state, seconds)
        except Exception:  # as in `notify`: a watch's errors must not decide about a payment
            log.exception(FAILED)

    def answered(self, operation: str, answer: object, sent: float) -> None:
        """Notify ``watch`` of the cache's answer, perhaps an error, to what was sent at ``sent``."""
        if self.watch is NOBODY:
            return
        try:
            if isinstance(answer, Exception):
                self.watch.cache_failed(operation, monotonic() - sent)
            else:
                self.watch.cache_answered(operation, monotonic() - sent)
        except Exception:  # as in `notify`: a watch's errors must not decide about a payment
            log.exception(FAILED)

    async def timed(self, operation: str, call: Awaitable[Answer]) -> Answer:
        """Await a call of the cache, and notify ``watch`` of the answer."""
        began = monotonic()
        try:
            answer = await call
        except CacheError:
            self.notify(self.watch.cache_failed, operation, monotonic() - began)
            raise
        self.notify(self.watch.cache_answered, operation, monotonic() - began)
        return answer

    def in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work``, which must not raise, for as long as the process lives."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task
