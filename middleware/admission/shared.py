"""Parts that the attempts of a process share: the cache, with its calls observed; timers; tasks that go on by themselves."""
# Compiled: docs/decisions/0012-compiled.md

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from time import monotonic
from typing import Any, Final, TypeVar

from oncegate.cache.callbacks import callbacks
from oncegate.cache.errors import CacheError
from oncegate.cache.record import Claim
from oncegate.cache.store import Cache
from oncegate.middleware.admission.limits.deadlines import LoopDeadlines
from oncegate.middleware.admission.observe import NOBODY, WATCH_FAILED, Watch
from oncegate.middleware.admission.tracing import AttemptTrace

log = logging.getLogger("oncegate.attempt")
_monotonic: Final = monotonic  # a module's own name takes no look into a dict, compiled

Result = TypeVar("Result")


def notify(event: Callable[..., None], *what: object) -> None:
    """Call one of a watch's methods. Its error is only logged: it must not decide about a payment."""
    try:
        event(*what)
    except Exception:
        log.exception(WATCH_FAILED)


class Shared:
    """One process's ``cache``, its time ``limits``, and the ``watch`` that is notified."""

    def __init__(self, cache: Cache, watch: Watch) -> None:
        self.cache = cache
        self.callbacks = callbacks(cache)
        self.watch = watch
        self.is_watched = watch is not NOBODY
        """Whether anybody is to be notified: else each request is spared the calls."""
        self.limits = LoopDeadlines()
        self.background: set[asyncio.Task[None]] = set()

    def answered(self, operation: str, answer: object, sent: float, trace: AttemptTrace | None = None) -> float:
        """Notify ``watch``, and a ``trace``, of the cache's answer, perhaps an error, to what was sent at ``sent``: so many
        seconds ago.
        """
        seconds = _monotonic() - sent
        try:
            if trace is not None:
                trace.cache_answered(operation, answer, sent)
            # Usual answers first: that something is no exception takes long to find.
            if not isinstance(answer, Claim) and answer is not True and isinstance(answer, Exception):
                self.watch.cache_failed(operation, seconds)
            else:
                self.watch.cache_answered(operation, seconds)
        except Exception:
            log.exception(WATCH_FAILED)
        return seconds

    async def timed(self, operation: str, call: Awaitable[Result]) -> Result:
        """Await a call of the cache, and notify ``watch`` of the answer."""
        sent = monotonic()
        try:
            answer = await call
        except CacheError as error:
            self.answered(operation, error, sent)
            raise
        self.answered(operation, answer, sent)
        return answer

    def in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work``, which must not raise, for as long as the process lives."""
        task = asyncio.get_running_loop().create_task(work)
        self.background.add(task)
        task.add_done_callback(self.background.discard)
        return task
