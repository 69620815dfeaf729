"""The parts of a gateway that outlast its configuration: records, counts, attempts in flight, and what waits for clients."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from oncegate.app.operators.console.sessions import EndedSessions
from oncegate.app.operators.readiness import Readiness
from oncegate.app.settings.certificates import ListenerTls
from oncegate.app.telemetry.access_log import AccessLog
from oncegate.app.telemetry.metrics import Metrics
from oncegate.app.telemetry.recent import RecentDecisions
from oncegate.app.telemetry.refusals import Refusals
from oncegate.app.upstream.forward import Forwarder
from oncegate.cache.store import Cache
from oncegate.middleware.http.middleware import IdempotencyMiddleware
from oncegate.middleware.http.observed.shadow import shadow_of
from oncegate.middleware.tokens.verifier import Tokens

if TYPE_CHECKING:
    from oncegate.app.telemetry.tracing import ProcessTracing
    from oncegate.cache.redis.client import RedisClient


@dataclass(slots=True)
class Lasting:
    """The parts that a gateway hands on to the one that takes its place.

    ``middleware`` is the first one's, of which the later ones have the attempts in flight; ``forwarder``, ``tokens`` and
    ``drain_timeout`` (s) are those of the one in place. ``streams`` is the client by which operators see commands, once they do.
    """

    cache: Cache
    metrics: Metrics
    middleware: IdempotencyMiddleware
    readiness: Readiness
    forwarder: Forwarder
    recent: RecentDecisions
    refusals: Refusals
    ended_sessions: EndedSessions
    tls: ListenerTls | None = None
    access_log: AccessLog | None = None
    tracing: "ProcessTracing | None" = None
    tokens: Tokens | None = None
    streams: "RedisClient | None" = None
    drain_timeout: float = 0.0

    def enter(self, index: int) -> None:
        """This process is worker ``index`` from now on."""
        self.metrics.enter(index)
        self.refusals.enter(index)
        self.ended_sessions.enter(index)

    def start(self) -> None:
        """Begin to write and to send what is said of requests, in this process."""
        if self.access_log is not None:
            self.access_log.lines.start()
        if self.tracing is not None:
            self.tracing.start()
        self.recent.start()

    def go_on_in(self, middleware: IdempotencyMiddleware) -> None:
        """Have the requests of ``middleware`` count with those that are in flight, and meet them."""
        door, before = middleware.door, self.middleware.door
        middleware.admissions = door.admissions = before.admissions
        door.buffered, door.unread = before.buffered, before.unread
        if door.shadow is not None:
            door.shadow = shadow_of(door)
        if self.tokens is not None and door.tokens is not None:
            door.tokens.source.go_on_from(self.tokens.source)

    async def drain(self) -> None:
        """Wait for attempts and for outcomes that are not recorded yet."""
        await self.middleware.drain(self.drain_timeout)

    async def close(self) -> None:
        """Close the connections to the upstream and to the cache."""
        self.recent.stop()
        await self.forwarder.close()
        await self.cache.close()
        if self.streams is not None:
            await self.streams.close()
        if self.tracing is not None:
            await self.tracing.stop()
