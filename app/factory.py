"""Builds the gateway from its settings: where its parts are put together, but for what operators have."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from oncegate.app.gateway.fast_path import FastPath
from oncegate.app.gateway.gateway import Gateway
from oncegate.app.gateway.lasting import Lasting
from oncegate.app.gateway.lifespan import Lifespan
from oncegate.app.gateway.tunnel import Tunnels
from oncegate.app.http1 import TrustedPeers
from oncegate.app.operators.console.sessions import EndedSessions, Sessions, session_keys
from oncegate.app.operators.pages.bearer import Bearer
from oncegate.app.operators.pages.operations import Operations
from oncegate.app.operators.readiness import Readiness
from oncegate.app.operators.reloading import Reload
from oncegate.app.operators.write_probe import try_writing
from oncegate.app.operators_factory import operators_app, operators_database, sampling
from oncegate.app.policies import gateway_policies, labels_of, shares
from oncegate.app.settings.access_log import Selection
from oncegate.app.settings.admin_tokens import AdminToken, parse
from oncegate.app.settings.certificates import ListenerTls, upstream_certificate
from oncegate.app.settings.gateway import GatewaySettings, redact
from oncegate.app.settings.loading.sources import ConfigurationError
from oncegate.app.settings.shown.digest import settings_digest
from oncegate.app.telemetry.access_log import AccessLog
from oncegate.app.telemetry.access_log import observed as access_log_observed
from oncegate.app.telemetry.line_writer import LineWriter
from oncegate.app.telemetry.metrics import Metrics
from oncegate.app.telemetry.observers import both
from oncegate.app.telemetry.recent import RecentDecisions
from oncegate.app.telemetry.refusals import Refusals
from oncegate.app.upstream.forward import Forwarder
from oncegate.cache.open import open_cache
from oncegate.cache.store import Cache
from oncegate.middleware.http.door import Observing
from oncegate.middleware.http.middleware import IdempotencyMiddleware
from oncegate.middleware.rules.checks.address_check import address_rules, check_addresses
from oncegate.middleware.rules.policies import Policies
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
    observe: Observing | None = None,
    admin_token: str | None = None,
    before: Gateway | None = None,
    reload: Reload | None = None,
    tls: ListenerTls | None = None,
) -> Gateway:
    """The gateway for ``settings``, not started yet. ``observe`` is called for each enforced request.

    ``admin_token`` is an operators' token beside those in the settings; without any, records are not served. ``tls`` is what its
    ports speak, for metrics.
    ``before`` is the running gateway whose place it is to take: it goes on with what lasts of that one, and changes nothing
    there until its `Gateway.install`. ``reload`` is what operators have done by the page of that name.
    Raises ``OSError`` where ``upstream_ca`` can't be read, `ConfigurationError` for ``upstream_cert`` and where spans are to be
    sent and can't be, `UnusableKeys` where no token could be verified, ``ValueError`` for a URL that its user can't take.
    """
    rules = settings.idempotency
    policies = gateway_policies(settings)
    cache = create_cache(settings) if before is None else before.lasting.cache
    write = partial(try_writing, cache, settings.namespace)
    metrics = _metrics(settings, policies) if before is None else before.lasting.metrics
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
        unshown=policies.unshown,
    )
    submitter = _submitter(settings, cache, metrics)
    process = _process_tracing(settings) if before is None else before.lasting.tracing
    tracing = None if process is None else _tracing(settings, process)
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
        watch=metrics,
        tracing=tracing,
    )

    door = middleware.door
    if before is None:
        readiness = Readiness(probe=forwarder.probe, cache=cache, write=write)
        access_log = _access_log(settings, metrics)
        recent, refusals = RecentDecisions(metrics), Refusals(settings.workers)
        ended = EndedSessions(settings.workers)
        lasting = Lasting(
            cache, metrics, middleware, readiness, forwarder, recent, refusals, ended, tls, access_log, process
        )
    else:
        lasting, readiness = before.lasting, before.lasting.readiness
        lasting.go_on_in(middleware)
    door.observe = _all(metrics.observed, observe, None if lasting.access_log is None else access_log_observed)
    door.count_refusal = lasting.refusals.count
    known = [*map(parse, settings.admin_tokens), *([AdminToken.of("", admin_token)] if admin_token else [])]
    operators = Bearer(known, metrics.login_refused) if known else None
    sessions = Sessions(lasting.ended_sessions, session_keys(settings.given_secrets), known)
    tokens = door.tokens
    database = operators_database(settings)
    create = partial(operators_app, settings, policies, lasting, operators, sessions, tokens, reload, database)
    check = partial(check_addresses, cache, settings.namespace, settings.digests(), address_rules(policies))
    gateway = Gateway(
        middleware,
        lasting=lasting,
        lifespan=Lifespan(lasting, write=write, check_addresses=check, sample=sampling(settings, cache, metrics)),
        install=partial(_install, settings, door.policies, lasting, forwarder, tokens),
        operations=Operations(settings.prefix, readiness, create, own_port=settings.ops_port, public=settings.public),
        prefix=settings.prefix,
        ops_port=settings.ops_port,
        docs_url=rules.docs_url,
        check_addresses=check,
        tokens=tokens,
        fast_path=FastPath(
            door,
            forwarder,
            None if submitter is None else submitter.start,
            prefix=settings.prefix,
            ops_port=settings.ops_port,
        ),
        tunnels=Tunnels(
            forwarder,
            policies,
            timeout=settings.tunnel_timeout,
            unread=door.unread,
            count=metrics.tunnels_changed,
        ),
        cors=cors,
        unshown=policies.unshown,
        begun=None if tracing is None else tracing.begun,
    )
    if before is None:
        gateway.install()
    return gateway


def _install(
    settings: GatewaySettings, policies: Policies, lasting: Lasting, forwarder: Forwarder, tokens: Tokens | None
) -> None:
    """Have what lasts go by these settings from now on."""
    readiness, cache = lasting.readiness, lasting.cache
    gauges = _gauges(settings, cache) | {
        "cache_readable": lambda: float(readiness.is_readable),
        "cache_writable": lambda: float(readiness.is_writable),
    }
    if (tls := lasting.tls) is not None:
        gauges["tls_cert_ends_timestamp_seconds"] = lambda: tls.ends
    routes, submissions = labels_of(policies)
    metrics = lasting.metrics
    metrics.serve(settings_digest(settings), routes, submissions, gauges, shares(policies), routes[:-1])
    lasting.refusals.serve(route for route, _ in routes)
    policies.on_match = metrics.matches.noting()
    if lasting.access_log is not None:
        lasting.access_log.follow(
            selection=Selection.of(settings.access_log_only) if settings.access_log_only else None,
            trusted=TrustedPeers(settings.trusted_proxies),
            prefix=settings.prefix,
            ops_port=settings.ops_port,
            methods=policies.methods,
            unshown=policies.unshown,
        )
    door = lasting.middleware.door
    in_flight = door.admissions.in_flight
    in_flight.limit(settings.max_in_flight, settings.max_in_flight_per_caller, settings.new_keys_per_caller)
    door.buffered.limit, door.unread.limit = settings.max_buffered, settings.max_unread
    readiness.follow(forwarder.probe, needs_cache=settings.ready_needs_cache)
    encryption, kept = settings.encryption(), getattr(cache, "encryption", None)
    if encryption is not None and kept is not None:
        kept.replace(encryption)
    lasting.forwarder, lasting.tokens, lasting.drain_timeout = forwarder, tokens, settings.shutdown_timeout


def _metrics(settings: GatewaySettings, policies: Policies) -> Metrics:
    routes, submissions = labels_of(policies)
    return Metrics(routes, submissions=submissions, workers=settings.workers)


def _process_tracing(settings: GatewaySettings) -> "ProcessTracing | None":
    """The traces of this process, if there are to be any. Raises `TracingRefused`."""
    if not settings.tracing:
        return None
    from oncegate.app.telemetry.tracing import ProcessTracing

    return ProcessTracing()


def _tracing(settings: GatewaySettings, process: "ProcessTracing") -> "GatewayTracing":
    """The traces of the gateway's requests."""
    from oncegate.app.gateway.tracing import GatewayTracing  # needs the extra, which ``process`` has found

    return GatewayTracing(process, redact(settings.upstream), settings.prefix)


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


def _all(first: Observing, *others: Observing | None) -> Observing:
    """Those that there are, as one."""
    for other in others:
        first = first if other is None else both(first, other)
    return first


def _access_log(settings: GatewaySettings, metrics: Metrics) -> AccessLog | None:
    if settings.access_log == "none":
        return None
    try:
        return AccessLog(settings.access_log, LineWriter(settings.access_log_file, metrics.access_log_dropped))
    except OSError as error:
        raise ConfigurationError(f"access_log_file: can't be opened: {error.strerror}") from None


def _read_headers(settings: GatewaySettings) -> set[str]:
    """The request headers that enforcement reads: a client's ``Connection`` must not remove them after they were read."""
    rules = [settings.idempotency, *(route.settings(settings.idempotency) for route in settings.routes)]
    names = {name for each in rules for name in (each.header, *each.aliases)}
    names |= {part.removeprefix("header:") for each in rules for part in each.scope_parts if part.startswith("header:")}
    if settings.access_log != "none":  # by which each request is followed
        names.add("X-Request-Id")
    return names if settings.jwt is None else names | {settings.jwt.header}


def create_cache(settings: GatewaySettings) -> Cache:
    """The cache that ``settings.cache`` names. Its connections are opened when they are needed."""
    return open_cache(
        settings.cache,
        timeout=settings.cache_timeout,
        memory_limit=settings.memory_limit,
        encryption_keys=settings.encryption_keys,
    )
