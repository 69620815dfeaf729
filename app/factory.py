"""Builds the gateway from its settings: the one place where its parts are put together."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from oncegate.app.gateway.fast_path import FastPath
from oncegate.app.gateway.gateway import Gateway
from oncegate.app.gateway.tunnel import Tunnels
from oncegate.app.operators.pages.bearer import Bearer
from oncegate.app.operators.pages.operations import Operations
from oncegate.app.operators.pages.policy import published
from oncegate.app.operators.readiness import Readiness
from oncegate.app.operators.records import Records
from oncegate.app.operators.write_probe import try_writing
from oncegate.app.settings.admin_tokens import AdminToken, parse
from oncegate.app.settings.certificates import ListenerTls, upstream_certificate
from oncegate.app.settings.gateway import GatewaySettings, redact
from oncegate.app.telemetry.metrics import Metrics
from oncegate.app.upstream.forward import Forwarder
from oncegate.cache.open import open_cache
from oncegate.cache.store import Cache
from oncegate.middleware.admission.observe import Observation, Observe
from oncegate.middleware.http.asgi import App
from oncegate.middleware.http.middleware import IdempotencyMiddleware
from oncegate.middleware.rules.address_check import address_rules, check_addresses
from oncegate.middleware.rules.policy import TOKEN_HEADER, Policies
from oncegate.middleware.tokens.verifier import Tokens

if TYPE_CHECKING:
    from oncegate.app.commands.submit import Submitter
    from oncegate.app.gateway.tracing import GatewayTracing
    from oncegate.app.telemetry.tracing import ProcessTracing

CONNECT_TIMEOUT = 5.0
"""Seconds for a connection to the upstream, TLS included. Nothing was sent by then, so giving up early is safe."""


def create_gateway(
    settings: GatewaySettings,
    *,
    observe: Observe | None = None,
    admin_token: str | None = None,
    tls: ListenerTls | None = None,
) -> Gateway:
    """The gateway for ``settings``, not started yet. ``observe`` is called for each enforced request.

    ``admin_token`` is an operators' token beside those in the settings; without any, records are not served. ``tls`` is what its
    ports speak, for metrics.
    Raises ``OSError`` where ``upstream_ca`` can't be read, `ConfigurationError` for ``upstream_cert`` and where spans are to be
    sent and can't be, `UnusableKeys` where no token could be verified, ``ValueError`` for a URL that its user can't take.
    """
    rules = settings.idempotency
    policies = gateway_policies(settings)
    cache = create_cache(settings)
    write = partial(try_writing, cache, settings.namespace)
    metrics = Metrics(
        [(policy.route, methods) for policy, methods in policies.with_methods()],
        submissions=[policy.route for policy in policies.all() if policy.submission is not None],
        workers=settings.workers,
        gauges=_gauges(settings, cache)
        | ({} if tls is None else {"tls_cert_ends_timestamp_seconds": lambda: tls.ends})
        | {
            "cache_readable": lambda: float(readiness.is_readable),
            "cache_writable": lambda: float(readiness.is_writable),
        },
    )
    cors = settings.cross_origin()
    forwarder = Forwarder(
        settings.upstream,
        connect_timeout=min(CONNECT_TIMEOUT, rules.response_timeout),
        response_timeout=rules.response_timeout,
        keepalive=settings.upstream_keepalive,
        ca_file=settings.upstream_ca or None,
        certificate=upstream_certificate(settings),
        trusted_proxies=settings.trusted_proxies,
        end_to_end=_read_headers(settings),
        via=settings.via,
    )
    submitter = _submitter(settings, cache, metrics)
    process, tracing = _tracing(settings)
    middleware = IdempotencyMiddleware(
        forwarder,
        cache=cache,
        submit=submitter,
        settings=rules,
        routes=settings.routes,
        namespace=settings.namespace,
        secret=settings.given_secrets,
        max_in_flight=settings.max_in_flight,
        max_in_flight_per_caller=settings.max_in_flight_per_caller,
        new_keys_per_caller=settings.new_keys_per_caller,
        max_buffered=settings.max_buffered,
        max_unread=settings.max_unread,
        body_timeout=settings.body_timeout,
        drain_timeout=settings.shutdown_timeout,
        cors=cors,
        jwt=settings.jwt,
        date_header=True,  # uvicorn's own is off, so that forwarded responses keep the upstream's
        observe=_both(metrics.observed, observe),
        watch=metrics,
        tracing=tracing,
    )

    async def close() -> None:
        await forwarder.close()
        await cache.close()
        if process is not None:
            await process.stop()

    readiness: Readiness = Readiness(
        probe=forwarder.probe, cache=cache, write=write, needs_cache=settings.ready_needs_cache
    )
    known = [*map(parse, settings.admin_tokens), *([AdminToken.of("", admin_token)] if admin_token else [])]
    operators = Bearer(known, metrics.login_refused) if known else None
    tokens = middleware.door.tokens
    create = partial(_operators_app, settings, policies, cache, metrics, readiness, operators, tokens)
    return Gateway(
        middleware,
        operations=Operations(settings.prefix, readiness, create, own_port=settings.ops_port),
        readiness=readiness,
        prefix=settings.prefix,
        ops_port=settings.ops_port,
        docs_url=rules.docs_url,
        cache=cache,
        write=write,
        drain=partial(middleware.drain, settings.shutdown_timeout),
        close=close,
        enter=metrics.enter,
        worker_died=metrics.worker_died,
        sample=_sampling(settings, cache, metrics),
        check_addresses=partial(
            check_addresses, cache, settings.namespace, settings.digests(), address_rules(policies)
        ),
        prefetch=partial(_prefetch, tokens, process),
        fast_path=FastPath(
            middleware.door,
            forwarder,
            None if submitter is None else submitter.start,
            prefix=settings.prefix,
            ops_port=settings.ops_port,
        ),
        tunnels=Tunnels(
            forwarder,
            middleware.door.policies,
            timeout=settings.tunnel_timeout,
            unread=middleware.door.unread,
            count=metrics.tunnels_changed,
        ),
        unread=middleware.door.unread,
        cors=cors,
        begun=None if tracing is None else tracing.begun,
    )


def _tracing(settings: GatewaySettings) -> "tuple[ProcessTracing, GatewayTracing] | tuple[None, None]":
    """The traces of this process and of its requests, if there are to be any. Raises `TracingRefused`."""
    if not settings.tracing:
        return None, None
    from oncegate.app.telemetry.tracing import ProcessTracing

    process = ProcessTracing()
    from oncegate.app.gateway.tracing import GatewayTracing  # needs the extra, which that has found

    return process, GatewayTracing(process, redact(settings.upstream), settings.prefix)


def _prefetch(tokens: Tokens | None, process: "ProcessTracing | None") -> None:
    if tokens is not None:
        tokens.source.refresh()
    if process is not None:
        process.start()


def gateway_policies(settings: GatewaySettings) -> Policies:
    """The rules of the gateway for ``settings``."""
    header = settings.jwt.header if settings.jwt is not None else TOKEN_HEADER
    return Policies(settings.idempotency, settings.routes, header)


def _submitter(settings: GatewaySettings, cache: Cache, metrics: Metrics) -> "Submitter | None":
    """``None`` where no route is asynchronous; where one is, the settings see to it that the cache is a Redis."""
    if all(route.mode == "sync" for route in settings.routes):
        return None
    from oncegate.app.commands.submit import Submitter  # not needed, so not loaded, where nothing is submitted
    from oncegate.cache.redis.client import client_of

    client = client_of(cache)
    if client is None:
        raise ValueError("an asynchronous route needs a Redis")
    numbered = [route.settings(settings.idempotency) for route in settings.routes if route.aggregate is not None]
    return Submitter(
        client,
        settings.namespace,
        encryption=settings.encryption(),
        prefix=settings.prefix,
        limit=settings.stream_limit,
        # As long as the record of an acceptance, and as the doubt where there is none.
        kept=max((2 * rules.ttl + rules.lease for rules in numbered), default=0.0),
        count=metrics.submitted,
    )


def _sampling(settings: GatewaySettings, cache: Cache, metrics: Metrics) -> Callable[[], Awaitable[None]] | None:
    if not settings.sample_records:
        return None
    from oncegate.app.operators.sampling import sample

    return partial(sample, create_records(settings, cache), settings.sample_records, metrics.sampled)


def create_records(settings: GatewaySettings, cache: Cache) -> Records:
    """The operators' access to the records of the gateway for ``settings``."""
    policies = gateway_policies(settings)
    return Records(cache, settings.namespace, policies.all(), settings.digests(), address_rules(policies))


def _operators_app(
    settings: GatewaySettings,
    policies: Policies,
    cache: Cache,
    metrics: Metrics,
    readiness: Readiness,
    operators: Bearer | None,
    tokens: Tokens | None,
) -> App:
    """The app that answers under the prefix. It loads FastAPI, which takes some tenths of a second."""
    from oncegate.app.operators.pages.api import create_app
    from oncegate.app.operators.pages.commands import CommandStatuses

    statuses, streams = None, {}
    consumers = settings.consumers
    if consumers:
        from oncegate.app.operators.dead_letters import open_commands  # loads redis-py's client

        streams = {name: partial(open_commands, settings, cache, name, consumers[name]) for name in consumers}
        *routes, default = policies.all()
        statuses = CommandStatuses(
            cache,
            settings.namespace,
            policies=[policy for policy in routes if policy.submission is not None],
            consumers=list(consumers.values()),
            rules=default,
            digests=settings.digests(),
            operators=operators,
            tokens=tokens,
            draining=lambda: readiness.draining,
        )
    return create_app(
        readiness=readiness,
        metrics=metrics.page,
        policy=published(policies.with_methods()),
        operators=operators,
        records=create_records(settings, cache),
        statuses=statuses,
        streams=streams,
        cors=settings.cross_origin(),
    )


def _gauges(settings: GatewaySettings, cache: Cache) -> dict[str, Callable[[], float]]:
    from oncegate.cache.memory.store import MemoryCache

    limits = {
        "attempts_limit": settings.max_in_flight,
        "buffered_limit_bytes": settings.max_buffered,
        "unread_limit_bytes": settings.max_unread,
    }
    gauges: dict[str, Callable[[], float]] = {
        name: partial(float, limit * settings.workers) for name, limit in limits.items()
    }
    if isinstance(cache, MemoryCache):
        held: MemoryCache = cache
        gauges["memory_cache_bytes"] = lambda: float(held.size_bytes)
        gauges["memory_cache_limit_bytes"] = lambda: float(settings.memory_limit)
    return gauges


def _both(first: Observe, second: Observe | None) -> Observe:
    if second is None:
        return first

    def observe(observation: Observation) -> None:
        first(observation)
        second(observation)

    return observe


def _read_headers(settings: GatewaySettings) -> set[str]:
    """The request headers that enforcement reads: a client's ``Connection`` must not remove them after they were read."""
    rules = [settings.idempotency, *(route.settings(settings.idempotency) for route in settings.routes)]
    names = {name for each in rules for name in (each.header, *each.aliases)}
    names |= {part.removeprefix("header:") for each in rules for part in each.scope_parts if part.startswith("header:")}
    return names if settings.jwt is None else names | {settings.jwt.header}


def create_cache(settings: GatewaySettings) -> Cache:
    """The cache that ``settings.cache`` names. Its connections are opened when they are needed."""
    return open_cache(
        settings.cache,
        timeout=settings.cache_timeout,
        memory_limit=settings.memory_limit,
        encryption_keys=settings.encryption_keys,
    )
