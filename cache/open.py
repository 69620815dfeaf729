"""Opens a cache by its URL, or checks one that a user gives."""

from collections.abc import Callable
from typing import cast

from oncegate.cache.redis.url import REDIS_SCHEMES, either
from oncegate.cache.store import Cache

_CALLS = ("claim", "extend", "complete", "release", "get")
"""The calls that every entry point makes."""


def open_cache(url: str, *, timeout: float = 0.5, memory_limit: int | None = None) -> Cache:
    """The cache at ``url``: ``memory://``, or what `RedisCache.from_url` takes. Its connections are opened when they are needed.

    ``timeout`` (s) bounds each command to Redis, ``memory_limit`` (bytes) what is held in memory.
    Raises ``TypeError`` for no text, ``ValueError`` for a URL that can't be used, without repeating it: it may hold credentials.
    """
    if not isinstance(url, str):
        raise TypeError(f"url is a {type(url).__qualname__}: give a str")
    scheme, there, _ = url.partition("://")
    store = _STORES.get(scheme.lower()) if there else None
    if store is None:
        raise ValueError(f"cache must be a URL that starts with {either(CACHE_SCHEMES)}")
    return store(url, timeout, memory_limit)


def _in_memory(url: str, _: float, memory_limit: int | None) -> Cache:
    from oncegate.cache.memory.store import DEFAULT_LIMIT_BYTES, MemoryCache

    if not url.endswith("://"):
        raise ValueError("cache: memory:// takes nothing after it")
    return MemoryCache(DEFAULT_LIMIT_BYTES if memory_limit is None else memory_limit)


def _in_redis(url: str, timeout: float, _: int | None) -> Cache:
    from oncegate.cache.redis.store import RedisCache  # not needed, so not loaded, on the embedded cache

    return RedisCache.from_url(url, timeout=timeout)


_STORES: dict[str, Callable[[str, float, int | None], Cache]] = {
    "memory": _in_memory,
    **dict.fromkeys(REDIS_SCHEMES, _in_redis),
}
"""Which store has which scheme: where another store is added."""
CACHE_SCHEMES = tuple(_STORES)


def given_cache(cache: object) -> Cache:
    """``cache``, opened where it is a URL (then see `open_cache`). Raises ``TypeError`` for what is no cache."""
    if isinstance(cache, str):
        return open_cache(cache)
    if isinstance(cache, type):
        raise TypeError(f"cache is the class {cache.__name__}: {_WRITE}")
    if not all(callable(getattr(cache, call, None)) for call in _CALLS):
        raise TypeError(f"cache is a {type(cache).__module__}.{type(cache).__qualname__}, which is no cache: {_WRITE}")
    return cast(Cache, cache)


_WRITE = (
    'give its URL, "redis://..." or "memory://", or a RedisCache.from_url(...), a MemoryCache() or a Cache of your own'
)
