"""``oncegate check``: checks whether this gateway could keep its promises. Each finding has a severity, and what to do about it.

One record is written to the cache and removed again; nothing else is changed anywhere. The upstream gets one HEAD request,
which changes nothing either (RFC 9110 section 9.2.1).
"""

import asyncio
import enum
from dataclasses import dataclass

from oncegate.app.factory import CONNECT_TIMEOUT, create_cache
from oncegate.app.operators.readiness import try_writing
from oncegate.app.settings.gateway import GatewaySettings, redact
from oncegate.app.upstream.connection import UpstreamConnection
from oncegate.app.upstream.pool import KEEPALIVE_MARGIN, Upstream
from oncegate.cache.errors import CacheError, CacheUnsupported
from oncegate.cache.redis.streams.client import StreamClient
from oncegate.cache.redis.streams.memory import StreamMemory
from oncegate.cache.redis.streams.stream import CommandStream, GroupProgress
from oncegate.middleware.outcome.errors import NotProcessed, OutcomeUnknown
from oncegate.middleware.rules.route_advice import route_advice
from oncegate.middleware.tokens.key_set import UnusableKeys
from oncegate.middleware.tokens.key_source import KeySource
from oncegate.middleware.tokens.open import all_claims
from oncegate.middleware.tokens.settings import is_url

SHORT_LEASE = 5.0
"""Seconds: a pause of a virtual machine, or of Redis while it forks, is easily as long."""
LONG_KEEPALIVE = 5.0
"""Seconds: common upstreams (uvicorn, Node) close idle connections after five."""
SHORT_TOKEN = 16
HEAD_SECONDS = 5.0


class Severity(enum.StrEnum):
    """How severe a finding is."""

    GOOD = "good"
    ADVICE = "advice"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked: ``area`` is configuration, cache, stream, jwks or upstream; ``text`` a line without secrets."""

    area: str
    severity: Severity
    text: str


async def examine(settings: GatewaySettings, admin_token: str | None) -> list[Finding]:
    """Check everything. Never raises for what it finds."""
    areas = await asyncio.gather(_cache(settings), _streams(settings), _keys(settings), _upstream(settings))
    return [*_configuration(settings, admin_token), *(finding for area in areas for finding in area)]


def _configuration(settings: GatewaySettings, admin_token: str | None) -> list[Finding]:
    advice = [*settings.advice(), *route_advice(settings.routes)]
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
    if settings.cache_scheme != "memory" and not (settings.secret or settings.secrets):
        advice.append(
            "secret is not set: who reads the cache or the logs can test guesses of keys, credentials and payloads against "
            "their digests; set ONCEGATE_SECRET, and see docs/operations.md for records that there are already"
        )
    if admin_token and len(admin_token) < SHORT_TOKEN:
        advice.append(f"ONCEGATE_ADMIN_TOKEN is shorter than {SHORT_TOKEN} characters: it opens every record")
    found = [Finding("configuration", Severity.ADVICE, line) for line in advice]
    return found or [Finding("configuration", Severity.GOOD, "complete and consistent")]


async def _cache(settings: GatewaySettings) -> list[Finding]:
    if settings.cache_scheme == "memory":
        line = "memory:// is for one process and forgets every record at a restart; a shared Redis keeps them"
        return [Finding("cache", Severity.ADVICE, line)]
    where = redact(settings.cache)
    cache = create_cache(settings)
    refusal: CacheError | None = None
    try:
        advice = await cache.check()
        try:
            await try_writing(cache, settings.namespace)
        except CacheError as error:
            refusal = error
    except CacheUnsupported as error:
        return [Finding("cache", Severity.FAILED, f"{where}: {error}")]
    except CacheError as error:
        line = f"{where} can't be used: {error}; is it up, and are address and login right?"
        return [Finding("cache", Severity.FAILED, line)]
    finally:
        await cache.close()
    found = [Finding("cache", Severity.ADVICE, f"{where}: {line}") for line in advice]
    if refusal is not None:
        return [*found, Finding("cache", Severity.FAILED, f"{where} answers, and takes no records: {refusal}")]
    return found or [Finding("cache", Severity.GOOD, f"{where} answers, keeps what it is given, and is new enough")]


async def _streams(settings: GatewaySettings) -> list[Finding]:
    if all(route.mode == "sync" for route in settings.routes):
        return []
    from oncegate.app.cli.findings import look  # loads redis-py's client, which nothing else here needs

    try:
        streams = await look(settings)
    except CacheError as error:
        return [Finding("stream", Severity.FAILED, f"the command streams can't be looked at: {error}")]
    found = []
    for advice, state in streams:
        found.append(Finding("stream", Severity.GOOD, state))
        found += [Finding("stream", Severity.ADVICE, line) for line in advice]
    return found


async def _keys(settings: GatewaySettings) -> list[Finding]:
    if settings.jwt is None or not all_claims(settings.idempotency, settings.routes):
        return []
    where = redact(settings.jwt.jwks) if is_url(settings.jwt.jwks) else settings.jwt.jwks
    try:
        source = KeySource(settings.jwt)
        keys = source.keys if source.keys is not None else await asyncio.to_thread(source.read)
    except UnusableKeys as error:
        return [Finding("jwks", Severity.FAILED, f"{where}: {error}; no token can be verified")]
    return [Finding("jwks", Severity.GOOD, f"{where} has keys that tokens are verified by: {len(keys)}")]


async def _upstream(settings: GatewaySettings) -> list[Finding]:
    where = redact(settings.upstream)
    try:
        upstream = Upstream(
            settings.upstream,
            connect_timeout=CONNECT_TIMEOUT,
            keepalive=settings.upstream_keepalive,
            ca_file=settings.upstream_ca or None,
        )
    except (OSError, ValueError) as error:
        return [Finding("upstream", Severity.FAILED, f"upstream or upstream_ca can't be used: {error}")]
    try:
        connection = await upstream.ready()
    except NotProcessed as error:
        return [Finding("upstream", Severity.FAILED, f"{error}; is it up, and is the address right?")]
    try:
        async with asyncio.timeout(HEAD_SECONDS):
            persistent = await _send_head(connection, upstream)
        if not persistent:
            line = f"{where} closes its connection after each answer: safe, and every request opens a new one"
            return [Finding("upstream", Severity.ADVICE, line)]
        return [await _wait_idle(connection, settings.upstream_keepalive, where)]
    except TimeoutError:
        line = f"{where} accepts connections and did not answer a HEAD request within {HEAD_SECONDS:g} s"
        return [Finding("upstream", Severity.ADVICE, line)]
    except OutcomeUnknown as error:
        return [Finding("upstream", Severity.FAILED, f"{error}; does it speak HTTP/1.1?")]
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


async def _wait_idle(connection: UpstreamConnection, keepalive: float, where: str) -> Finding:
    """Whether the upstream keeps an idle connection for as long as we do, and a margin."""
    announced = connection.response.idle_timeout
    loop = asyncio.get_running_loop()
    began = loop.time()
    await asyncio.wait((connection.closed,), timeout=keepalive + KEEPALIVE_MARGIN)
    if not connection.lost:
        return Finding("upstream", Severity.GOOD, f"{where} answers, and keeps idle connections longer than we do")
    waited = loop.time() - began
    if announced is not None:
        line = f"{where} answers, and announces after how long it closes idle connections ({announced:g} s)"
        return Finding("upstream", Severity.GOOD, line)
    return Finding(
        "upstream",
        Severity.ADVICE,
        f"{where} closes idle connections after {waited:.1f} s: a request that meets the close may be of unknown outcome; "
        f"set upstream_keepalive below {max(0.0, waited - KEEPALIVE_MARGIN):.1f} (it is {keepalive:g}; 0 keeps none)",
    )


FAR_BEHIND = 0.5
"""Of a stream's limit: a group with as many entries still to read is far behind, and submissions will soon be refused."""


def _shown(group: GroupProgress) -> str:
    unread = "an unknown number" if group.unread is None else str(group.unread)
    return f"{group.name} has {unread} to read and {group.pending} to acknowledge"


def judge(
    name: str, consumer: str, limit: int, dead: int, groups: list[GroupProgress], memory: StreamMemory
) -> tuple[list[str], str]:
    """Advice about one stream, a line each; and how it stands, in one line. Pure."""
    advice = []
    if all(group.name != consumer for group in groups):
        advice.append(
            f"stream {name}: nobody has begun to read it as {consumer}, so its commands wait: start oncegate worker, "
            f"or set the route's consumer to the name that reads it"
        )
    for group in groups:
        waiting = (group.unread or 0) + group.pending
        if waiting >= FAR_BEHIND * limit:
            advice.append(
                f"stream {name}: {_shown(group)}, of {limit} that the stream may hold: start more workers, or remove the "
                "group if nobody reads with it any more (XGROUP DESTROY)"
            )
    if not memory.suffices:
        advice.append(
            f"stream {name}: of Redis's {memory.most} bytes {memory.used} are used, and {memory.reserved} are kept for what was "
            "accepted, so submissions are refused: start more workers, or raise maxmemory"
        )
    if dead:
        advice.append(f"stream {name} has given up commands, {dead} so far: oncegate commands list tells why")
    readers = "; ".join(_shown(group) for group in groups) or "no group reads it"
    room = ""
    if memory.most:
        room = (
            f"; submissions are refused from {memory.most - memory.reserved} bytes in Redis on, {memory.used} are used"
        )
    return advice, f"stream {name}: {memory.entries} entries, at most {limit} ({readers}){room}"


async def look(settings: GatewaySettings) -> list[tuple[list[str], str]]:
    """The findings of `judge` for each stream of the asynchronous routes. Raises `CacheError`."""
    consumers = {route.stream: route.consumer_name for route in settings.routes if route.mode != "sync"}
    if not consumers:
        return []
    client = StreamClient(settings.cache, timeout=settings.cache_timeout)
    try:
        streams = [CommandStream(client, settings.namespace, name) for name in consumers]
        found = await asyncio.gather(*[_look(stream) for stream in streams])
    finally:
        await client.close()
    return [
        judge(name, consumer, settings.stream_limit, *state)
        for (name, consumer), state in zip(consumers.items(), found, strict=True)
    ]


async def _look(stream: CommandStream) -> tuple[int, list[GroupProgress], StreamMemory]:
    return await stream.dead(), await stream.groups(), await stream.memory()
