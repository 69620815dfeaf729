"""``oncegate check``: checks whether this gateway could keep its promises. Each finding has a severity, and what to do about it.

One record is written to the cache and removed again; nothing else is changed anywhere. The upstream gets one HEAD request,
which changes nothing either (RFC 9110 section 9.2.1).
"""

import asyncio
import enum
import ssl
from dataclasses import dataclass

from oncegate.app.factory import CONNECT_TIMEOUT, create_cache
from oncegate.app.operators.database.errors import DatabaseUnavailable
from oncegate.app.operators.write_probe import try_writing
from oncegate.app.operators_factory import operators_database
from oncegate.app.policies import gateway_policies
from oncegate.app.settings.advice import settings_advice
from oncegate.app.settings.certificates import certificates, upstream_certificate
from oncegate.app.settings.gateway import GatewaySettings, redact
from oncegate.app.settings.loading.sources import ConfigurationError
from oncegate.app.upstream.connection import UpstreamConnection
from oncegate.app.upstream.pool import KEEPALIVE_MARGIN, Upstream
from oncegate.cache.errors import CacheError, CacheUnsupported
from oncegate.cache.redis.streams.commands import stream_client
from oncegate.cache.redis.streams.stream import CommandStream, GroupProgress
from oncegate.cache.store import Cache
from oncegate.middleware.outcome.errors import NotProcessed, OutcomeUnknown
from oncegate.middleware.rules.checks.address_check import address_rules, changed_rules, moved_line
from oncegate.middleware.rules.checks.route_advice import route_advice
from oncegate.middleware.rules.checks.secret_check import is_under_another_secret, other_secret_line
from oncegate.middleware.tokens.key_set import UnusableKeys
from oncegate.middleware.tokens.key_source import KeySource
from oncegate.middleware.tokens.settings import is_url
from oncegate.middleware.tokens.verifier import all_claims

SHORT_LEASE = 5.0
"""Seconds: a pause of a virtual machine, or of Redis while it forks, is easily as long."""
LONG_KEEPALIVE = 5.0
"""Seconds: common upstreams (uvicorn, Node) close idle connections after five."""
FAR_BEHIND = 0.5
"""The share of a stream's limit from which on a group is far behind: with so much still to read, submissions are soon refused."""
HEAD_SECONDS = 5.0


class Severity(enum.StrEnum):
    """How severe a finding is."""

    GOOD = "good"
    ADVICE = "advice"
    FAILED = "failed"


GOOD, ADVICE, FAILED = Severity
Lines = list[tuple[Severity, str]]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked, in an ``area``: configuration, routes, cache, stream, jwks, tls, upstream, database.

    ``text`` is a line.
    """

    area: str
    severity: Severity
    text: str


async def examine(settings: GatewaySettings) -> list[Finding]:
    """Check everything. Never raises for what it finds."""
    checks = {
        "cache": _cache, "stream": _streams, "jwks": _keys, "tls": _certificates, "upstream": _upstream,
        "database": _database,
    }  # fmt: skip
    found = await asyncio.gather(*[check(settings) for check in checks.values()])
    areas = {"configuration": _configuration(settings), **dict(zip(checks, found, strict=True))}
    return [Finding(area, *each) for area, lines in areas.items() for each in lines]


def _configuration(settings: GatewaySettings) -> Lines:
    advice = [*settings_advice(settings), *route_advice(settings.routes)]
    rules = {"idempotency": settings.idempotency}
    rules |= {f"routes.{n}": route.settings(settings.idempotency) for n, route in enumerate(settings.routes)}
    for where, each in rules.items():
        if each.lease < SHORT_LEASE and (where == "idempotency" or each.lease != settings.idempotency.lease):
            advice.append(
                f"{where}.lease is {each.lease:g} s: a gateway or a Redis that pauses for as long loses its attempts; 30 is usual"
            )
    if settings.upstream_keepalive >= LONG_KEEPALIVE:
        advice.append(
            f"upstream_keepalive is {settings.upstream_keepalive:g} s: many upstreams close idle connections sooner, "
            "and a request that meets the close may be of unknown outcome; 1.5 is safe"
        )
    if settings.cache_is_shared and not settings.secret:
        advice.append(
            "secret is not set: who reads the cache or the logs can test guesses of keys, credentials and payloads against "
            "their digests; set ONCEGATE_SECRET, and see docs/operations.md for records that there are already"
        )
    return [(ADVICE, line) for line in advice] or [(GOOD, "complete and consistent")]


async def _cache(settings: GatewaySettings) -> Lines:
    if not settings.cache_is_shared:
        return [
            (
                ADVICE,
                "memory:// is for one process and forgets every record at a restart; "
                "a file (sqlite:///records.db) or a shared Redis keeps them",
            )
        ]
    where = redact(settings.cache)
    cache = create_cache(settings)
    refusal: CacheError | None = None
    kept: Lines = []
    try:
        advice = await cache.check()
        try:
            await try_writing(cache, settings.namespace)
            kept = await _kept(cache, settings)
        except CacheError as error:
            refusal = error
    except CacheUnsupported as error:
        return [(FAILED, f"{where}: {error}")]
    except CacheError as error:
        return [(FAILED, f"{where} can't be used: {error}; is it up, and are address and login right?")]
    finally:
        await cache.close()
    found = [(ADVICE, f"{where}: {line}") for line in advice]
    found += kept
    if refusal is not None:
        return [*found, (FAILED, f"{where} answers, and takes no records: {refusal}")]
    return found or [(GOOD, f"{where} answers, keeps what it is given, and is new enough")]


async def _kept(cache: Cache, settings: GatewaySettings) -> Lines:
    """By what is kept of the last start: whether this secret is another one, and whether addresses are made by other rules."""
    namespace = settings.namespace
    try:
        if await is_under_another_secret(cache, namespace, settings.digests()):
            return [(FAILED, other_secret_line(namespace))]
        changed = await changed_rules(cache, namespace, address_rules(gateway_policies(settings)))
    except CacheError as error:
        return [
            (ADVICE, f"by which secret and rules records of namespace {namespace} are addressed can't be read: {error}")
        ]
    return [(ADVICE, moved_line(namespace, changed))] if changed else []


async def _database(settings: GatewaySettings) -> Lines:
    """Whether what operators are to see of the consumers' database can be seen. Requests don't need it."""
    try:
        database = operators_database(settings)
    except ConfigurationError as error:
        return [(FAILED, str(error))]
    if database is None:
        return []
    try:
        totals = await database.totals()
    except DatabaseUnavailable as error:
        return [(ADVICE, f"ops_database: {error}; operators see nothing of it until it answers")]
    seen = [name for name, found in totals.items() if found is not None]
    if not seen:
        return [
            (
                ADVICE,
                "ops_database has no table of inboxes that keep an order, of outboxes or of projections to be read",
            )
        ]
    return [(GOOD, f"ops_database answers, and shows {', '.join(seen)}")]


async def _streams(settings: GatewaySettings) -> Lines:
    consumers = settings.consumers
    if not consumers:
        return []
    client = stream_client(settings.cache, timeout=settings.cache_timeout)
    try:
        streams = {name: CommandStream(client, settings.namespace, name) for name in consumers}
        found = [await _stream(stream, consumers[name], settings.stream_limit) for name, stream in streams.items()]
    except CacheError as error:
        return [(FAILED, f"the command streams can't be looked at: {error}")]
    finally:
        await client.close()
    return [line for lines in found for line in lines]


async def _stream(stream: CommandStream, consumer: str, limit: int) -> Lines:
    """How a stream stands, which may hold ``limit`` entries and is to be read by ``consumer``; then advice about it."""
    dead, groups, memory = await stream.dead(), await stream.groups(), await stream.memory()
    advice = []
    if all(group.name != consumer for group in groups):
        advice.append(
            f"stream {stream.name}: nobody has begun to read it as {consumer}, so its commands wait: start oncegate worker, "
            f"or set the route's consumer to the name that reads it"
        )
    for group in groups:
        waiting = (group.unread or 0) + group.pending
        if waiting >= FAR_BEHIND * limit:
            advice.append(
                f"stream {stream.name}: {_standing(group)}, of {limit} that the stream may hold: start more workers, or "
                "remove the group if nobody reads with it any more (XGROUP DESTROY)"
            )
    if not memory.suffices:
        advice.append(
            f"stream {stream.name}: of Redis's {memory.most} bytes {memory.used} are used, and {memory.reserved} are kept for "
            "what was accepted, so submissions are refused: start more workers, or raise maxmemory"
        )
    if dead:
        advice.append(f"stream {stream.name} has given up commands, {dead} so far: oncegate commands list shows why")
    readers = "; ".join(map(_standing, groups)) or "no group reads it"
    room = ""
    if memory.most:
        free = memory.most - memory.reserved
        room = f"; submissions are refused from {free} bytes in Redis on, {memory.used} are used"
    state = f"stream {stream.name}: {memory.entries} entries, at most {limit} ({readers}){room}"
    return [(GOOD, state), *((ADVICE, line) for line in advice)]


def _standing(group: GroupProgress) -> str:
    unread = "an unknown number" if group.unread is None else str(group.unread)
    return f"{group.name} has {unread} to read and {group.pending} to acknowledge"


async def _keys(settings: GatewaySettings) -> Lines:
    if settings.jwt is None or not all_claims(settings.idempotency, settings.routes):
        return []
    where = redact(settings.jwt.jwks) if is_url(settings.jwt.jwks) else settings.jwt.jwks
    try:
        source = KeySource(settings.jwt)
        keys = source.keys if source.keys is not None else await asyncio.to_thread(source.read)
    except UnusableKeys as error:
        return [(FAILED, f"{where}: {error}; no token can be verified")]
    return [(GOOD, f"{where} has keys that tokens are verified by: {len(keys)}")]


async def _certificates(settings: GatewaySettings) -> Lines:
    found: Lines = []
    for certificate in certificates(settings):
        try:
            certificate.load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        except ConfigurationError as error:
            found.append((FAILED, str(error)))
        else:
            lines = certificate.advice()
            found += [(ADVICE, line) for line in lines] or [(GOOD, f"{certificate.cert} and its key can be used")]
    return found


async def _upstream(settings: GatewaySettings) -> Lines:
    where = redact(settings.upstream)
    try:
        upstream = Upstream(
            settings.upstream,
            connect_timeout=CONNECT_TIMEOUT,
            keepalive=settings.upstream_keepalive,
            ca_file=settings.upstream_ca or None,
            certificate=upstream_certificate(settings),
        )
    except ConfigurationError:
        return []  # its certificate, which has a line of its own
    except (OSError, ValueError) as error:
        return [(FAILED, f"upstream or upstream_ca can't be used: {error}")]
    try:
        connection = await upstream.ready()
    except NotProcessed as error:
        return [(FAILED, f"{error}; is it up, and is the address right?")]
    try:
        async with asyncio.timeout(HEAD_SECONDS):
            persistent = await _send_head(connection, upstream)
        if not persistent:
            return [
                (ADVICE, f"{where} closes its connection after each answer: safe, and every request opens a new one")
            ]
        return [await _wait_idle(connection, settings.upstream_keepalive, where)]
    except TimeoutError:
        return [(ADVICE, f"{where} accepts connections and did not answer a HEAD request within {HEAD_SECONDS:g} s")]
    except OutcomeUnknown as error:
        return [(FAILED, f"{error}; does it speak HTTP/1.1?")]
    finally:
        connection.abort()
        await upstream.close()


async def _send_head(connection: UpstreamConnection, upstream: Upstream) -> bool:
    """Send one HEAD request: whether its connection may carry another one."""
    address = upstream.address
    connection.begin(is_head=True)
    path = address.base + b"/"
    connection.write(b"HEAD %b HTTP/1.1\r\nhost: %b\r\nuser-agent: oncegate-check\r\n\r\n" % (path, address.authority))
    await connection.head()
    while await connection.read():
        pass
    return connection.finish()


async def _wait_idle(connection: UpstreamConnection, keepalive: float, where: str) -> tuple[Severity, str]:
    """Whether the upstream keeps an idle connection for as long as we do, and a margin."""
    announced = connection.response.head.idle_timeout
    loop = asyncio.get_running_loop()
    began = loop.time()
    await asyncio.wait((connection.closed,), timeout=keepalive + KEEPALIVE_MARGIN)
    if not connection.lost:
        return GOOD, f"{where} answers, and keeps idle connections longer than we do"
    waited = loop.time() - began
    if announced is not None:
        return GOOD, f"{where} answers, and announces after how long it closes idle connections ({announced:g} s)"
    return (
        ADVICE,
        f"{where} closes idle connections after {waited:.1f} s: a request that meets the close may be of unknown outcome; "
        f"set upstream_keepalive below {max(0.0, waited - KEEPALIVE_MARGIN):.1f} (it is {keepalive:g}; 0 keeps none)",
    )
