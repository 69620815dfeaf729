"""The endpoints under the prefix, never forwarded: health, readiness, metrics, policy, records, commands."""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Protocol

from oncegate.app.operators.reply import NOT_FOUND, Reply, method_not_allowed, told
from oncegate.cache.errors import CacheError
from oncegate.middleware.http.asgi import Receive, Scope, Send
from oncegate.middleware.outcome.errors import NotProcessed

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


Page = Callable[[Scope, Receive, str], Awaitable[Reply]]
"""Answers a request below ``records/`` or ``commands/``; the path below that comes along."""


class Operations:
    """An ASGI app: everything under ``prefix``.

    ``probe`` connects to the upstream and raises where it can't; ``write`` raises where the cache takes no record. The cache's
    state is reported, but what passes through doesn't need it: it counts only with ``needs_cache``. While ``draining``, the
    gateway is not ready.

    ``metrics`` formats them as an ``Accept`` header asks; ``policy`` is what is published about
    keys; ``records`` and ``commands`` answer below ``records/`` and ``commands/``. Where they are ``None`` they do not exist.
    With ``own_port``, metrics and records exist on that port alone, and nothing but operations does.
    """

    def __init__(
        self,
        prefix: str,
        *,
        probe: Callable[[], Awaitable[object]],
        cache: Checkable,
        write: Callable[[], Awaitable[object]] | None = None,
        needs_cache: bool = False,
        metrics: Callable[[str], tuple[bytes, str]] | None = None,
        policy: bytes | None = None,
        records: Page | None = None,
        commands: Page | None = None,
        own_port: int = 0,
    ) -> None:
        self.draining = False
        self._prefix = prefix
        self._needs_cache = needs_cache
        self._upstream = _State(probe)
        self._reading = _State(cache.check)
        self._writing = self._reading if write is None else _State(write, KEEP_WRITING_SECONDS)
        self._metrics = metrics
        self._policy = policy
        self._records = records
        self._commands = commands
        self._own_port = own_port

    def owns(self, scope: Scope) -> bool:
        """Whether the request came in on the operators' own port, by its socket, not by what the request says."""
        return bool(self._own_port and scope["server"] and scope["server"][1] == self._own_port)

    @property
    def is_readable(self) -> bool:
        """Whether the cache answered the last check."""
        return self._reading.was_ok

    @property
    def is_writable(self) -> bool:
        """Whether it took a record at the last check."""
        return self._writing.was_ok

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request under the prefix, or on the operators' own port."""
        await (await self._reply(scope, receive)).send(scope, send)

    async def _reply(self, scope: Scope, receive: Receive) -> Reply:
        path: str = scope["path"]
        if not path.startswith(self._prefix):
            return NOT_FOUND
        name = path.removeprefix(self._prefix).strip("/")
        private = not self._own_port or self.owns(scope)
        first, _, below = name.partition("/")
        if first == "records" and self._records is not None and private:
            return await self._records(scope, receive, below)
        if first == "commands" and self._commands is not None:
            return await self._commands(scope, receive, below)
        if name not in READING or (name == "metrics" and not private):
            return NOT_FOUND
        if scope["method"] not in ("GET", "HEAD"):
            return method_not_allowed("GET, HEAD")
        return await READING[name](self, scope)

    async def _health(self, _: Scope) -> Reply:
        return told({"status": "up"})

    async def _tell_metrics(self, scope: Scope) -> Reply:
        if self._metrics is None:
            return NOT_FOUND
        await asyncio.gather(self._reading.ok(), self._writing.ok())  # for `is_readable` and `is_writable`
        accept = b",".join(value for name, value in scope["headers"] if name == b"accept").decode("latin-1")
        body, content_type = self._metrics(accept)
        return Reply(200, body, content_type)

    async def _tell_policy(self, _: Scope) -> Reply:
        return NOT_FOUND if self._policy is None else Reply(200, self._policy)

    async def _ready(self, _: Scope) -> Reply:
        states = self._upstream.ok(), self._reading.ok(), self._writing.ok()
        upstream, reading, writing = await asyncio.gather(*states)
        ready = upstream and not self.draining and ((reading and writing) or not self._needs_cache)
        members = {
            "status": "draining" if self.draining else "ready" if ready else "not ready",
            "upstream": "reachable" if upstream else "unreachable",
            "cache": "unavailable" if not reading else "available" if writing else "read-only",
        }
        return told(members, 200 if ready else 503)


READING: dict[str, Callable[[Operations, Scope], Awaitable[Reply]]] = {
    "healthz": Operations._health,
    "readyz": Operations._ready,
    "metrics": Operations._tell_metrics,
    "policy": Operations._tell_policy,
}
"""The answers to GET and HEAD, by name below the prefix. Each of them is described in openapi/oncegate.yaml."""


class _State:
    """Whether something can be reached, checked once for all requests within ``keep`` seconds (`KEEP_SECONDS`)."""

    def __init__(self, ask: Callable[[], Awaitable[object]], keep: float | None = None) -> None:
        self.was_ok = False
        self._ask = ask
        self._keep = keep
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
                self.was_ok = await self._ask() is not False
        except (CacheError, OSError, TimeoutError, NotProcessed):
            self.was_ok = False
        finally:
            self._until = monotonic() + (KEEP_SECONDS if self._keep is None else self._keep)
        return self.was_ok
