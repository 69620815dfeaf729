"""What operators ask the gateway itself: is it up, is it ready. Under the prefix, never forwarded."""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Protocol

import orjson

from oncegate.cache.errors import CacheError
from oncegate.middleware.http import Scope, Send
from oncegate.middleware.processor import NotProcessed
from oncegate.middleware.request import Receive
from oncegate.middleware.respond import date

KEEP_SECONDS = 1.0
"""A state is asked for at most this often, however many probes there are."""
PROBE_SECONDS = 2.0
"""A probe that takes longer has failed: a readiness check that hangs is worse than one that says no."""


class Checkable(Protocol):
    """The part of a cache that is needed here."""

    async def check(self) -> list[str]:
        """Raises a `CacheError` where the cache can't be used."""
        ...


class Operations:
    """An ASGI app: ``healthz`` and ``readyz`` under ``prefix``.

    ``probe`` reaches for the upstream and raises where it can't. The cache's state is told, but what passes through
    doesn't need it: it counts only with ``needs_cache``. While ``draining``, the gateway is not ready.
    """

    def __init__(
        self, prefix: str, *, probe: Callable[[], Awaitable[object]], cache: Checkable, needs_cache: bool = False
    ) -> None:
        self.draining = False
        self._prefix = prefix
        self._needs_cache = needs_cache
        self._upstream = _State(probe)
        self._cache = _State(cache.check)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Answer one request under the prefix."""
        name = scope["path"].removeprefix(self._prefix).strip("/")
        answers = {"healthz": self._health, "readyz": self._ready}
        if name not in answers:
            await _answer(scope, send, 404, {"title": "Not Found", "status": 404, "detail": "No such operation."})
        elif scope["method"] not in ("GET", "HEAD"):
            await _answer(scope, send, 405, {"title": "Method Not Allowed", "status": 405}, (b"allow", b"GET, HEAD"))
        else:
            status, body = await answers[name]()
            await _answer(scope, send, status, body)

    async def _health(self) -> tuple[int, dict[str, object]]:
        return 200, {"status": "up"}

    async def _ready(self) -> tuple[int, dict[str, object]]:
        upstream, cache = await asyncio.gather(self._upstream.ok(), self._cache.ok())
        ready = upstream and not self.draining and (cache or not self._needs_cache)
        return 200 if ready else 503, {
            "status": "draining" if self.draining else "ready" if ready else "not ready",
            "upstream": "reachable" if upstream else "unreachable",
            "cache": "available" if cache else "unavailable",
        }


class _State:
    """Whether something can be reached, asked once for all who want to know within `KEEP_SECONDS`."""

    def __init__(self, ask: Callable[[], Awaitable[object]]) -> None:
        self._ask = ask
        self._asked: asyncio.Task[bool] | None = None
        self._until = 0.0

    async def ok(self) -> bool:
        if self._asked is None or (self._asked.done() and monotonic() >= self._until):
            self._asked = asyncio.create_task(self._reach())
        # A probe whose client goes away must not take the answer from the others.
        return await asyncio.shield(self._asked)

    async def _reach(self) -> bool:
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                return await self._ask() is not False
        except (CacheError, OSError, TimeoutError, NotProcessed):
            return False
        finally:
            self._until = monotonic() + KEEP_SECONDS


async def _answer(
    scope: Scope, send: Send, status: int, members: dict[str, object], *headers: tuple[bytes, bytes]
) -> None:
    body = orjson.dumps(members)
    kind = b"application/problem+json" if "title" in members else b"application/json"
    start = [
        (b"content-type", kind),
        (b"content-length", b"%d" % len(body)),
        (b"cache-control", b"no-store"),
        date(),
        *headers,
    ]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
