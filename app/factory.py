"""The one place that wires: settings in, gateway out."""

from functools import partial
from urllib.parse import urlsplit

from oncegate.app.forward import Forwarder
from oncegate.app.gateway import Gateway
from oncegate.app.operations import Operations
from oncegate.app.settings import GatewaySettings
from oncegate.cache.base import Cache
from oncegate.middleware.http import IdempotencyMiddleware
from oncegate.middleware.observe import Observe

CONNECT_TIMEOUT = 5.0
"""Seconds for a connection to the upstream, TLS included. Nothing was sent by then, so giving up early is safe."""


def create_gateway(settings: GatewaySettings, *, observe: Observe | None = None) -> Gateway:
    """The gateway for ``settings``, not started yet. ``observe`` is told of each enforced request.

    Raises ``OSError`` where ``upstream_ca`` can't be read, ``ValueError`` for a URL that its user can't take.
    """
    rules = settings.idempotency
    cache = create_cache(settings)
    forwarder = Forwarder(
        settings.upstream,
        connect_timeout=min(CONNECT_TIMEOUT, rules.response_timeout),
        response_timeout=rules.response_timeout,
        keepalive=settings.upstream_keepalive,
        ca_file=settings.upstream_ca or None,
        trusted_proxies=settings.trusted_proxies,
        end_to_end=_read_headers(settings),
    )
    middleware = IdempotencyMiddleware(
        forwarder,
        cache=cache,
        settings=rules,
        routes=settings.routes,
        namespace=settings.namespace,
        max_in_flight=settings.max_in_flight,
        body_timeout=settings.body_timeout,
        drain_timeout=settings.shutdown_timeout,
        date_header=True,  # uvicorn's own is off, so that forwarded responses keep the upstream's
        observe=observe,
    )

    async def close() -> None:
        await forwarder.close()
        await cache.close()

    return Gateway(
        middleware,
        operations=Operations(
            settings.prefix, probe=forwarder.probe, cache=cache, needs_cache=settings.ready_needs_cache
        ),
        prefix=settings.prefix,
        docs_url=rules.docs_url,
        cache=cache,
        drain=partial(middleware.drain, settings.shutdown_timeout),
        close=close,
    )


def _read_headers(settings: GatewaySettings) -> set[str]:
    """The request headers that enforcement reads: a client must not have them dropped on the way, after they counted."""
    rules = [settings.idempotency, *(route.settings(settings.idempotency) for route in settings.routes)]
    names = {name for each in rules for name in (each.header, *each.aliases)}
    return names | {part.removeprefix("header:") for each in rules for part in each.scope}


def create_cache(settings: GatewaySettings) -> Cache:
    """The cache that ``settings.cache`` names. Its connections are opened when they are needed."""
    if urlsplit(settings.cache).scheme == "memory":
        from oncegate.cache.memory import MemoryCache

        return MemoryCache(limit_bytes=settings.memory_limit)
    from oncegate.cache.redis import RedisCache  # not needed, so not loaded, on the embedded cache

    return RedisCache.from_url(settings.cache, timeout=settings.cache_timeout)
