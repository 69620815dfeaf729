"""What an attempt needs of its process: the cache, time limits, background tasks, and the user's `Watch`."""
# Compiled: docs/decisions/0012-compiled.md

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from oncegate.cache.record import State
from oncegate.cache.store import Cache, prompt
from oncegate.middleware.admission.deadlines import LoopDeadlines
from oncegate.middleware.admission.observe import Watch

Answer = TypeVar("Answer")

NOBODY: Final = Watch()
"""The watch that does nothing."""


class Runtime:
    """Attempts know `oncegate.middleware.admission.in_flight.InFlight` as this: it owns them, and they don't know how."""

    def __init__(self, cache: Cache, watch: Watch) -> None:
        self.cache = cache
        self.prompt = prompt(cache)
        self.watch = watch
        self.is_watched = watch is not NOBODY
        """Whether anybody is to be notified: else each request is spared the calls."""
        self.limits = LoopDeadlines()

    def end(self, attempt: Any) -> None:
        """The attempt runs no more: its slot is free as soon as its outcome is ``visible``. Later calls do nothing."""
        raise NotImplementedError

    def keep_trying(self, attempt: Any) -> None:
        """Retry recording the outcome of ``attempt`` until the cache takes it; bounded in bytes: then without the body."""
        raise NotImplementedError

    def notify(self, event: Callable[..., None], *what: object) -> None:
        """Call one of ``watch``'s methods; its errors are only logged."""
        raise NotImplementedError

    def decided(self, route: str, state: State | None, seconds: float) -> None:
        """Notify ``watch`` of an outcome."""
        raise NotImplementedError

    def answered(self, operation: str, answer: object, sent: float) -> None:
        """Notify ``watch`` of the cache's answer, perhaps an error, to what was sent at ``sent``."""
        raise NotImplementedError

    async def timed(self, operation: str, call: Awaitable[Answer]) -> Answer:
        """Await a call of the cache, and notify ``watch`` of the answer."""
        raise NotImplementedError

    def in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work``, which must not raise, for as long as the process lives."""
        raise NotImplementedError
