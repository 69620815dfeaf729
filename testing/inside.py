"""Looks inside what has no public view, in one place: for tests that count what is left over, or that meddle with it."""

import asyncio
import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from oncegate.cache.memory.expiry import ExpiringBytes
from oncegate.cache.memory.store import MemoryCache
from oncegate.cache.redis.connection.pipe import PipelinedConnection
from oncegate.cache.redis.store import RedisCache
from oncegate.cache.store import Cache
from oncegate.middleware.admission.attempt import Attempt
from oncegate.middleware.admission.in_flight import InFlight
from oncegate.middleware.admission.limits.deadlines import Deadlines, LoopDeadlines
from oncegate.middleware.http.middleware import IdempotencyMiddleware

if TYPE_CHECKING:
    from oncegate.app.gateway.fast_path import FastPath
    from oncegate.app.gateway.gateway import Gateway
    from oncegate.app.upstream.forward import Forwarder
    from oncegate.app.upstream.pool import Upstream
    from oncegate.sql import Inbox
    from oncegate.sql.inbox.maintenance import InboxMaintenance


def cache_of(gateway: "Gateway") -> Cache:
    """Where its records are."""
    return gateway.lasting.cache


def redis_cache_of(gateway: "Gateway") -> RedisCache:
    """The same, where it is Redis."""
    cache = cache_of(gateway)
    assert isinstance(cache, RedisCache)
    return cache


def middleware_of(gateway: "Gateway") -> IdempotencyMiddleware:
    """What it enforces keys by."""
    middleware = gateway._forward
    assert isinstance(middleware, IdempotencyMiddleware)
    return middleware


def fast_path_of(gateway: "Gateway") -> "FastPath":
    """What its requests that end at once go by."""
    fast_path = gateway._fast_path
    assert fast_path is not None
    return fast_path


def take_for_operators_port(gateway: "Gateway", port: int) -> None:
    """Have it treat what comes in on ``port``, its own one, as on the operators' port."""
    gateway._ops_port = gateway.operations._own_port = port
    if gateway._fast_path is not None:
        gateway._fast_path._ops_port = port


def without_fast_path(gateway: "Gateway") -> None:
    """Have each of its requests get a task."""
    gateway._fast_path = None


def attempts_of(in_flight: InFlight) -> Mapping[bytes, Attempt]:
    """Those that have not ended, by their owner's token; it changes with them."""
    return in_flight._attempts


def entries_of(cache: MemoryCache) -> ExpiringBytes:
    """The bytes of its records, by key."""
    return cache._entries


def transport_of(pipeline: PipelinedConnection) -> asyncio.WriteTransport:
    """What it writes to, while it is connected."""
    assert pipeline._transport is not None
    return pipeline._transport


def each_of(limits: LoopDeadlines) -> Collection[Deadlines]:
    """Those of all loops and lengths."""
    return limits._all.values()


def pending(limits: Deadlines) -> int:
    """How many are set, and not reached."""
    return len(limits._set)


def watched_by(forwarder: "Forwarder") -> int:
    """How many exchanges with the upstream are watched for a client that leaves."""
    watches, connections = forwarder._watches, forwarder.upstream.connections
    by_callback = sum(connection.lasts_at < math.inf for connection in connections)
    return by_callback + (0 if watches is None else pending(watches))


def in_use(upstream: "Upstream") -> int:
    """How many of the connections to an upstream carry an exchange."""
    return len(upstream.connections) - upstream.idle


def maintenance_of(inbox: "Inbox") -> "InboxMaintenance":
    """What it clears away its old rows by."""
    return inbox._maintenance
