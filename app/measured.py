"""A cache whose answers are timed. Around it nothing changes; looking, resolving and checking are not timed."""

from collections.abc import Awaitable, Coroutine
from time import perf_counter
from typing import Any, TypeVar

from oncegate.app.metrics import Metrics
from oncegate.cache.base import Cache, Claim
from oncegate.cache.errors import CacheError

Answer = TypeVar("Answer")


class MeasuredCache:
    """A `Cache`, as ``cache`` is, with the time of each call that requests wait for told to ``metrics``."""

    def __init__(self, cache: Cache, metrics: Metrics) -> None:
        self._cache = cache
        self._metrics = metrics
        # What needs no timing goes straight through.
        self.peek, self.resolve, self.scan = cache.peek, cache.resolve, cache.scan
        self.check, self.close = cache.check, cache.close

    # Plain functions that return a coroutine: one frame less on the way of every request.

    def claim(self, key: str, **arguments: Any) -> Coroutine[Any, Any, Claim]:
        """See `Cache.claim`."""
        return self._timed("claim", self._cache.claim(key, **arguments))

    def extend(self, key: str, **arguments: Any) -> Coroutine[Any, Any, bool]:
        """See `Cache.extend`."""
        return self._timed("extend", self._cache.extend(key, **arguments))

    def complete(self, key: str, **arguments: Any) -> Coroutine[Any, Any, bool]:
        """See `Cache.complete`."""
        return self._timed("complete", self._cache.complete(key, **arguments))

    def release(self, key: str, **arguments: Any) -> Coroutine[Any, Any, bool]:
        """See `Cache.release`."""
        return self._timed("release", self._cache.release(key, **arguments))

    def get(self, key: str) -> Coroutine[Any, Any, Claim | None]:
        """See `Cache.get`."""
        return self._timed("get", self._cache.get(key))

    async def _timed(self, operation: str, answer: Awaitable[Answer]) -> Answer:
        began = perf_counter()
        try:
            answered = await answer
        except CacheError:
            self._metrics.cache_failed(operation, perf_counter() - began)
            raise
        self._metrics.cache_answered(operation, perf_counter() - began)
        return answered
