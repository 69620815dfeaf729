"""Opens a cache by its URL, or checks one that a user gives."""

import logging
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from oncegate.cache.redis.url import MANY_SERVERS, REDIS_SCHEMES, either, parse_servers_url, scheme_of

if TYPE_CHECKING:  # the command line's help names the schemes, and needs nothing else
    from oncegate.cache.store import Cache

SQL_SCHEMES = ("sqlite", "postgresql")
"""Those of records in a database."""

log = logging.getLogger("oncegate.cache")

_has_warned = False
_CALLS = ("claim", "renew", "complete", "release", "get")
"""The calls that every entry point makes."""


def open_cache(
    url: str, *, timeout: float = 0.5, memory_limit: int | None = None, encryption_keys: Sequence[str] = ()
) -> "Cache":
    """The cache at ``url``: ``memory://``, or what `RedisCache.from_url` takes, or ``sqlite:///FILE`` and ``postgresql://...``.

    Its connections are opened when they are needed. ``timeout`` (s) bounds each call, ``memory_limit`` (bytes) what is held in
    memory. ``encryption_keys`` encrypt what is in Redis or a database (see `RedisCache.from_url`), and change nothing in memory.
    Raises ``TypeError`` for no text, ``ValueError`` for a URL that can't be used, without repeating it: it may hold credentials.
    """
    if not isinstance(url, str):
        raise TypeError(f"url is a {type(url).__qualname__}: give a str")
    try:
        scheme = check_url(url)
    except ValueError as error:
        raise ValueError(f"cache {error}") from None
    return _STORES[scheme](url, timeout, memory_limit, encryption_keys)


def warn_of_processes() -> None:
    """Log once that memory is no cache for several workers, where this process is seen to be one of them."""
    global _has_warned
    from oncegate.cache.memory.processes import worker_count

    workers = worker_count()
    if workers > 1 and not _has_warned:
        _has_warned = True
        log.warning(
            "%d workers, and each has a memory cache of its own: one key is executed once in each of them; "
            "use one worker, or a cache that they share (sqlite:///FILE, redis://)",
            workers,
        )


def check_url(url: str) -> str:
    """The scheme of a cache's URL, in lower case. Raises ``ValueError`` for what can't be one, in a line that repeats no more."""
    scheme = scheme_of(url)
    if scheme not in CACHE_SCHEMES:
        raise ValueError(f"must be a URL that starts with {either(CACHE_SCHEMES)}")
    if scheme == "memory" and url.partition("://")[2]:
        raise ValueError("memory:// takes nothing after it")
    if scheme in MANY_SERVERS:
        parse_servers_url(url)
    elif scheme in SQL_SCHEMES:
        _check_address(scheme, url)
    return scheme


def _check_address(scheme: str, url: str) -> None:
    if scheme == "sqlite":
        from oncegate.cache.sql.sqlite.schema import SqliteAddress

        SqliteAddress(url)
    else:
        from oncegate.cache.sql.postgresql.address import PostgresAddress

        PostgresAddress(url)


def _in_memory(_url: str, _: float, memory_limit: int | None, _keys: Sequence[str]) -> "Cache":
    from oncegate.cache.memory.store import DEFAULT_LIMIT_BYTES, MemoryCache

    return MemoryCache(DEFAULT_LIMIT_BYTES if memory_limit is None else memory_limit)


def _in_redis(url: str, timeout: float, _: int | None, keys: Sequence[str]) -> "Cache":
    from oncegate.cache.redis.store import RedisCache  # not needed, so not loaded, on the embedded cache

    return RedisCache.from_url(url, timeout=timeout, encryption_keys=keys)


def _in_database(url: str, timeout: float, _: int | None, keys: Sequence[str]) -> "Cache":
    from oncegate.cache.sql.store import SqlCache

    return SqlCache.from_url(url, timeout=timeout, encryption_keys=keys)


_STORES: dict[str, Callable[[str, float, int | None, Sequence[str]], "Cache"]] = {
    "memory": _in_memory,
    **dict.fromkeys(REDIS_SCHEMES, _in_redis),
    **dict.fromkeys(SQL_SCHEMES, _in_database),
}
"""Which store has which scheme: where another store is added, and all else learns of it."""
CACHE_SCHEMES = tuple(_STORES)
IN_PROCESS_SCHEMES = ("memory",)
"""Schemes of caches whose records are one process's own, and go with it."""
SHARED_SCHEMES = tuple(scheme for scheme in CACHE_SCHEMES if scheme not in IN_PROCESS_SCHEMES)


def given_cache(cache: object) -> "Cache":
    """``cache``, opened where it is a URL (then see `open_cache`). Raises ``TypeError`` for what is no cache."""
    if isinstance(cache, str):
        cache = open_cache(cache)
    if isinstance(cache, type):
        raise TypeError(f"cache is the class {cache.__name__}: {_WRITE}")
    if not all(callable(getattr(cache, call, None)) for call in _CALLS):
        raise TypeError(f"cache is a {type(cache).__module__}.{type(cache).__qualname__}, which is no cache: {_WRITE}")
    memory = sys.modules.get("oncegate.cache.memory.store")
    if memory is not None and isinstance(cache, memory.MemoryCache):
        warn_of_processes()
    return cast("Cache", cache)


_WRITE = (
    'give its URL, "redis://...", "sqlite:///..." or "memory://", '
    "or a RedisCache.from_url(...), a MemoryCache() or a Cache of your own"
)
