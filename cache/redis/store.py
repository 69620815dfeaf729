"""`RedisCache`: records in Redis 7.0 or newer; each call of the protocol is one script on one key (the ``.lua`` files say why).

A first request costs two commands, a replay one. All callers of a loop share one connection to a server
(`oncegate.cache.redis.connection.pipe`), with a second one for large outcomes. Which server holds a key is found by
`oncegate.cache.redis.connection.topology`. A claim whose reply was lost is handled by
`oncegate.cache.redis.connection.withdrawal`.
"""

import asyncio
import re
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any

from hiredis import ReplyError

from oncegate.cache.codec import decode, encode
from oncegate.cache.encryption import OFF_LOOP_BYTES, Encryption, given_encryption, off_loop
from oncegate.cache.errors import CacheUnavailable, CacheUnsupported, RecordUnreadable
from oncegate.cache.record import TOKEN_BYTES, Claim, ClaimRequest, Record, State, body_bytes
from oncegate.cache.redis.advice import advise_all
from oncegate.cache.redis.calls import (
    AppendCall,
    Appended,
    CallbackCall,
    ClaimCall,
    EncryptedClaimCall,
    Numbering,
    OutcomeCall,
    record_bytes,
)
from oncegate.cache.redis.connection import faults
from oncegate.cache.redis.connection.pipe import Bounds, Reply
from oncegate.cache.redis.connection.send import ready, send
from oncegate.cache.redis.connection.server import Session
from oncegate.cache.redis.connection.topology import Routes, Topology, create_topology
from oncegate.cache.redis.scripts import (
    CHECK_SECRET,
    EXTEND,
    GET,
    MEMORY,
    OUTLAST,
    PEEK,
    PROLONG,
    PURGE,
    RELEASE,
    RESOLVE,
    Script,
    pack,
)
from oncegate.cache.seconds import given_seconds
from oncegate.cache.store import Adopt, Page, Then, by_callback, start
from oncegate.cache.transitions import Resolution, ResolveRequest, check_duration, check_resolution, resolved_record

_GLOB = re.compile(rb"[*?\[\]\\^-]")
"""The special characters of a MATCH pattern."""
_CURSOR = re.compile(r"([0-9]{1,4}\.)?[0-9]{1,20}")
_RESOLUTIONS = {
    1: Resolution.RESOLVED,
    0: Resolution.ABSENT,
    -1: Resolution.IN_FLIGHT,
    -2: Resolution.SETTLED,
    -3: Resolution.OTHER_ATTEMPT,
}
_OTHER_RECORD = -5
_MOST_TRIES = 3
"""How often a record is looked at that has become another one by the time it is to be resolved."""


@by_callback
class RedisCache:
    """A `Cache` in Redis. Build it with `from_url`; it connects when it is first used, and again whenever it has to.

    ``timeout`` (s) bounds each command, opening a connection and finding the right server included. Several event loops
    may use one cache: each has its own connections.
    """

    past_maxmemory = False
    """Whether `claim` may take a Redis over its ``maxmemory``: for those whose claims free more in the end than they take."""

    def __init__(self, topology: Topology, *, timeout: float, encryption: Encryption | None = None) -> None:
        if isinstance(topology, str) or not hasattr(topology, "open"):
            raise TypeError(f"topology is a {type(topology).__qualname__}: RedisCache.from_url(url) builds a cache")
        self._topology = topology
        self._timeout = timeout
        self.encryption = encryption
        self._claim_call = ClaimCall if encryption is None else EncryptedClaimCall
        self._routes: dict[asyncio.AbstractEventLoop, Routes] = {}

    @classmethod
    def from_url(
        cls, url: str, *, timeout: float = 0.5, bounds: Bounds | None = None, encryption_keys: Sequence[str] = ()
    ) -> "RedisCache":
        """A cache in the Redis at ``url``, with redis-py's options: ``redis://``, ``rediss://``, ``unix://``, and those of
        `oncegate.cache.redis.url` for Sentinel and Cluster. ``bounds`` says how much may be unanswered on a connection.
        Responses are encrypted by the first of ``encryption_keys`` (``id:base64`` of 32 bytes each, ``none``: not yet), and read
        by all of them.

        Raises ``ValueError`` for a URL or a key that can't be used. Does not connect: `check` does.
        """
        (timeout,) = given_seconds(timeout=timeout)
        topology = create_topology(url, timeout, bounds or Bounds(patience=2 * timeout))
        return cls(topology, timeout=timeout, encryption=given_encryption(encryption_keys))

    @property
    def timeout(self) -> float:
        """Seconds that a call takes at most."""
        return self._timeout

    async def claim(self, key: str, request: ClaimRequest, *, adopt: Adopt | None = None) -> Claim:
        """See `Cache.claim`. A fresh token for each call: one that was given up on is withdrawn by its token."""
        routes = self._here() or await self._open()
        call = self._claim_call(routes, key, request, adopt, None, self.encryption, self.past_maxmemory)
        reply = await self._reply(call)
        return await off_loop(0 if self.encryption is None else record_bytes(reply), call.read, reply)

    def start_claim(
        self,
        key: str,
        request: ClaimRequest,
        *,
        loop: asyncio.AbstractEventLoop,
        adopt: Adopt | None,
        then: Then[Claim],
    ) -> asyncio.Task[None] | None:
        """See `CallbackCache`. It takes a task where a connection is to be opened."""
        routes = self._routes.get(loop)
        if routes is not None:
            call = self._claim_call(routes, key, request, adopt, then, self.encryption, self.past_maxmemory)
            if call.send(self._timeout):
                return None
        return start(loop, self.claim(key, request, adopt=adopt), then)

    async def extend(self, key: str, *, token: bytes, lease_ms: int) -> bool:
        """See `Cache.extend`."""
        check_duration("lease_ms", lease_ms)
        return bool(await self._run(EXTEND, key, token, b"%d" % lease_ms) == 1)

    async def complete(self, key: str, outcome: Record, *, ttl_ms: int) -> bool:
        """See `Cache.complete`."""
        routes = self._here() or await self._open()
        size = 0 if self.encryption is None else body_bytes(outcome)
        call = await off_loop(size, OutcomeCall, routes, key, outcome, ttl_ms, None, self.encryption)
        return call.read(await self._reply(call))

    def start_complete(
        self, key: str, outcome: Record, *, loop: asyncio.AbstractEventLoop, ttl_ms: int, then: Then[bool]
    ) -> None:
        """See `CallbackCache`. It takes a task where a connection is to be opened, or much to be encrypted."""
        routes = self._routes.get(loop)
        if routes is not None and (self.encryption is None or body_bytes(outcome) <= OFF_LOOP_BYTES):
            call = OutcomeCall(routes, key, outcome, ttl_ms, then, self.encryption)
            if call.send(self._timeout):
                return
        start(loop, self.complete(key, outcome, ttl_ms=ttl_ms), then)

    async def release(self, key: str, *, token: bytes) -> bool:
        """See `Cache.release`."""
        if len(token) != TOKEN_BYTES:
            raise ValueError("a token has 16 bytes")
        return bool(await self._run(RELEASE, key, token) == 1)

    async def get(self, key: str) -> Claim | None:
        """See `Cache.get`."""
        return await self._read(GET, key)

    async def peek(self, key: str) -> Claim | None:
        """See `Cache.peek`."""
        return await self._read(PEEK, key)

    async def _read(self, script: Script, key: str) -> Claim | None:
        reply = await self._run(script, key)
        if reply is None:
            return None
        try:
            data, remaining_ms, *size = reply
            read = (key, data, remaining_ms, size[0] if size else -1)
            if self.encryption is None:
                record = self._record(*read)
            else:
                record = await off_loop(len(data), self._record, *read)
        except (TypeError, ValueError) as error:
            raise RecordUnreadable("Redis answered with something that is no record") from error
        return Claim(False, record, remaining_ms)

    def _record(self, key: str, data: bytes, remaining_ms: int, size: int) -> Record:
        return decode(data, remaining_ms, traced=True, size=size, encryption=self.encryption, key=key.encode())

    async def resolve(self, key: str, request: ResolveRequest) -> Resolution:
        """See `Cache.resolve`."""
        target = check_resolution(request.state, request.ttl_ms, request.response)
        terms = (b"%d" % request.ttl_ms, b"1" if request.force else b"0", b"%d" % request.attempt)
        for _ in range(_MOST_TRIES):
            outcome = b""
            if target is not State.ABSENT:
                held = await self.peek(key)
                if held is None:
                    return Resolution.ABSENT
                resolved = resolved_record(held.record, target, request)
                size = 0 if self.encryption is None else body_bytes(resolved)
                outcome = await off_loop(size, encode, resolved, self.encryption, key.encode())
            reply = await self._run(RESOLVE, key, outcome, *terms)
            if reply in _RESOLUTIONS:
                return _RESOLUTIONS[reply]
            if reply != _OTHER_RECORD:
                raise RecordUnreadable("a record is damaged, or of another version: it can't be resolved")
        return Resolution.OTHER_ATTEMPT

    async def purge(self, key: str, seen: Record, *, force: bool = False) -> Resolution:
        """Remove a record, unless it is another attempt's by now than ``seen``, or in flight and not by ``force``.

        Not of the `Cache` protocol: what is purged is in a shared cache.
        """
        owner = seen.token + seen.attempt.to_bytes(4, "big")
        reply = await self._run(PURGE, key, owner, b"1" if force else b"0")
        if reply not in _RESOLUTIONS:
            raise RecordUnreadable("Redis answered with something that is no answer")
        return _RESOLUTIONS[reply]

    async def check_secret(self, namespace: str, values: Sequence[str], *, writes: bool) -> bool:
        """See `KeepsSecretCheck`. It is kept for good, beside the records: no scan of the namespace finds it."""
        given = [value.encode() for value in values]
        return bool(await self._run(CHECK_SECRET, f"{{{namespace}:secret}}", b"1" if writes else b"0", *given) == 1)

    async def command(self, key: str, packed: bytes) -> Reply:
        """The reply to a packed command on ``key``, an error reply as a value. Not of the `Cache` protocol: it is for streams.

        Raises `CacheUnavailable`, after which the command may have run or not.
        """
        routes = self._here() or await self._open()
        return await send(routes, key.encode(), packed, routes.loop.time() + self._timeout)

    async def append(
        self, stream: str, fields: Iterable[bytes], *, limit: int, numbering: Numbering | None = None
    ) -> Appended | None:
        """Append an entry to the stream under a Redis key; ``None`` where ``limit`` entries are needed already.

        ``fields`` are names and values in turn. With a ``numbering`` it gets its aggregate's next number, in the same step.
        Not of the `Cache` protocol: only Redis has streams. It takes the connections of the records, so that it arrives where
        the record of the same command is: another one might still be to an old master, which takes writes until it is demoted.

        Raises `CacheRefused`: nothing was appended; other `CacheUnavailable`: the entry may be there or not.
        """
        call = AppendCall(self._here() or await self._open(), stream, fields, limit, numbering, None)
        return call.read(await self._reply(call))

    def start_append(
        self,
        stream: str,
        fields: Sequence[bytes],
        *,
        limit: int,
        numbering: Numbering | None,
        loop: asyncio.AbstractEventLoop,
        then: Then[Appended | None],
    ) -> None:
        """The same by callback, as those of `CallbackCache`."""
        routes = self._routes.get(loop)
        if routes is None or not AppendCall(routes, stream, fields, limit, numbering, then).send(self._timeout):
            start(loop, self.append(stream, fields, limit=limit, numbering=numbering), then)

    async def memory(self, stream: str) -> tuple[int, int, int]:
        """Bytes used where the stream under a Redis key is, bytes that may be (0: no limit), and the stream's entries.

        Raises `CacheUnavailable`.
        """
        reply = await self.command(stream, MEMORY.call(stream.encode()))
        if isinstance(reply, ReplyError):
            raise faults.of_stream_reply(reply)
        used, most, entries = reply
        return used, most, entries

    async def outlast(self, key: str, submission: Record, *, ttl_ms: int) -> int:
        """Let the record of an accepted ``submission`` live for ``ttl_ms`` at least, written again where it is gone.

        Returns how long it does. 0: another record is there; -1: it is still in flight. Raises `CacheUnavailable`.
        """
        return int(await self._run(OUTLAST, key, encode(submission, self.encryption, key.encode()), b"%d" % ttl_ms))

    async def prolong(self, key: str, *, ttl_ms: int) -> bool:
        """Let a record that has an outcome live for ``ttl_ms`` at least. False: it has none, or lives for longer."""
        return bool(await self._run(PROLONG, key, b"%d" % ttl_ms) == 1)

    async def scan(self, namespace: str, key_digest: str | None = None, *, cursor: str = "", limit: int = 100) -> Page:
        """See `Cache.scan`. SCAN looks at about ``limit`` keys of the whole database, and may find none of ours among them.

        A cluster's nodes are gone through one after the other (a cursor is ``<node>.<cursor there>``); what moves from one
        to another meanwhile may be missed.
        """
        if cursor and not _CURSOR.fullmatch(cursor):
            raise ValueError("this is no cursor of ours")
        number, _, there = cursor.rpartition(".")
        prefix = f"{namespace}:{key_digest}:" if key_digest is not None else f"{namespace}:"
        pattern = _GLOB.sub(rb"\\\g<0>", prefix.encode()) + b"*"
        packed = pack(b"SCAN", there.encode() or b"0", b"MATCH", pattern, b"COUNT", b"%d" % max(1, limit))
        routes = self._here() or await self._open()
        deadline = asyncio.get_running_loop().time() + self._timeout
        sessions = await _sessions(routes, deadline)
        node = min(int(number or 0), len(sessions) - 1)
        reply = await (await ready(sessions[node].claims, deadline)).send(packed, deadline)
        if isinstance(reply, ReplyError):
            raise faults.of_reply(reply)
        try:
            on, keys = reply
            found = tuple([key.decode() for key in keys if _is_text(key)])
            there = on.decode("ascii")
        except (TypeError, ValueError, AttributeError) as error:
            raise CacheUnavailable("Redis answered a scan with something that is no page of keys") from error
        if there == "0":
            node, there = node + 1, "0" if node + 1 < len(sessions) else ""
        return Page(found, f"{node}.{there}" if there and len(sessions) > 1 else there)

    async def check(self) -> list[str]:
        """See `Cache.check`."""
        routes = self._here() or await self._open()
        deadline = asyncio.get_running_loop().time() + self._timeout
        return await advise_all(await routes.sessions(deadline), deadline)

    async def close(self) -> None:
        """See `Cache.close`. Claims that wait to be withdrawn get one more time-out; a call after this connects again."""
        for loop, routes in list(self._routes.items()):
            self._routes.pop(loop, None)
            if loop is asyncio.get_running_loop():
                routes.resume_withdrawing()
                await routes.settle()
                await routes.aclose()
            elif loop.is_closed():
                routes.close()
            else:
                loop.call_soon_threadsafe(routes.close)

    def _here(self) -> Routes | None:
        return self._routes.get(asyncio.get_running_loop())

    async def _open(self) -> Routes:
        loop = asyncio.get_running_loop()
        for old in [other for other in list(self._routes) if other.is_closed()]:
            self._routes.pop(old).close()
        routes = self._routes[loop] = self._topology.open()
        await routes.guard()
        routes.resume_withdrawing()
        return routes

    async def _run(self, script: Script, key: str, *arguments: bytes) -> Reply:
        """A script's reply. Raises the error that an error reply stands for."""
        reply = await self.command(key, script.call(key.encode(), *arguments))
        if isinstance(reply, ReplyError):
            raise faults.of_reply(reply)
        return reply

    def _reply(self, call: CallbackCall[Any]) -> Awaitable[Reply]:
        return send(call.routes, call.key, call.packed, call.routes.loop.time() + self._timeout, call)


async def _sessions(routes: Routes, deadline: float) -> list[Session]:
    try:
        return await routes.sessions(deadline)
    except CacheUnsupported as error:
        raise CacheUnavailable(str(error)) from error


def _is_text(key: bytes) -> bool:
    """Whether this can be a look-up key at all: a foreign key in the namespace must not end a scan."""
    return key.isascii()
