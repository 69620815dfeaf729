"""`RedisCache`: records in Redis 7.0 or newer; each call of the protocol is one script on one key (the ``.lua`` files say why).

A first request costs two commands, a replay one. All callers of a loop share one connection to a server
(`oncegate.cache.redis.client`), with a second one for large outcomes. A claim whose reply was lost is handled by
`oncegate.cache.redis.connection.withdrawal`.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import ClassVar

from hiredis import ReplyError

from oncegate.cache.callbacks import CallbackCache, CallbackCalls
from oncegate.cache.codec import decode, encode
from oncegate.cache.encryption import Encryption, given_encryption, off_loop
from oncegate.cache.errors import CacheUnavailable, RecordUnreadable
from oncegate.cache.record import TOKEN_BYTES, Claim, ClaimRequest, Record, State, body_bytes
from oncegate.cache.redis.calls import ClaimCall, EncryptedClaimCall, RedisCalls, record_bytes
from oncegate.cache.redis.client import RedisClient
from oncegate.cache.redis.connection import faults
from oncegate.cache.redis.connection.pipe import Bounds, Reply
from oncegate.cache.redis.connection.send import ready
from oncegate.cache.redis.executions import ExecutionCalls, SubmissionLives, outcome_call
from oncegate.cache.redis.scripts import (
    CHECK_SECRET,
    GET,
    KEEP_AUDIT_LINE,
    KEEP_PROCESS,
    OUTLAST,
    PEEK,
    PROCESSES,
    PROLONG,
    PURGE,
    RELEASE,
    RENEW,
    RESOLVE,
    pack,
)
from oncegate.cache.seconds import given_seconds
from oncegate.cache.store import (
    MOST_PROCESSES,
    Described,
    KeptProcess,
    Page,
    audit_key,
    peek_each,
    processes_key,
    readable,
)
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


class RedisCache(CallbackCache, by_callback=True):
    """A `Cache` in Redis. Build it with `from_url`; it connects when it is first used, and again whenever it has to.

    Several event loops may use one cache: each has its own connections.
    """

    __slots__ = ("_claim_call", "client", "encryption", "lives", "past_maxmemory")
    system: ClassVar = "redis"

    def __init__(self, client: RedisClient, *, encryption: Encryption | None = None) -> None:
        if not isinstance(client, RedisClient):
            raise TypeError(f"client is a {type(client).__qualname__}: RedisCache.from_url(url) builds a cache")
        self.client = client
        self.encryption = encryption
        self.past_maxmemory = False
        self.lives: SubmissionLives | None = None
        self._claim_call = ClaimCall if encryption is None else EncryptedClaimCall

    @classmethod
    def from_url(
        cls, url: str, *, timeout: float = 0.5, bounds: Bounds | None = None, encryption_keys: Sequence[str] = ()
    ) -> "RedisCache":
        """A cache in the Redis at ``url``. Does not connect: `check` does.

        - ``url``: ``redis://``, ``rediss://`` or ``unix://``, with redis-py's options, or one of Sentinel or Cluster
          (`oncegate.cache.redis.url`).
        - ``timeout``: seconds for each command, opening a connection and finding the right server included.
        - ``bounds``: how much may be unanswered on a connection.
        - ``encryption_keys``: what is kept of responses is encrypted by the first, and read by all of them. Each is
          ``id:base64`` of 32 bytes; ``none`` as the first: nothing is encrypted yet.

        Raises ``ValueError`` for a URL or a key that can't be used.
        """
        (timeout,) = given_seconds(timeout=timeout)
        client = RedisClient.from_url(url, timeout=timeout, bounds=bounds)
        return cls(client, encryption=given_encryption(encryption_keys))

    @property
    def timeout(self) -> float:
        """Seconds that a call takes at most."""
        return self.client.timeout

    async def claim(self, key: str, request: ClaimRequest, *, adopt: Callable[[Claim], None] | None = None) -> Claim:
        """See `Cache.claim`. A fresh token for each call: one that was given up on is withdrawn by its token."""
        routes = await self.client.opened()
        call = self._claim_call(routes, key, request, adopt, None, self.encryption, self.past_maxmemory)
        reply = await self.client.reply(call)
        return await off_loop(0 if self.encryption is None else record_bytes(reply), call.read, reply)

    async def renew(self, key: str, *, token: bytes, lease_ms: int) -> bool:
        """See `Cache.renew`."""
        check_duration("lease_ms", lease_ms)
        return bool(await self.client.run(RENEW, key, token, b"%d" % lease_ms) == 1)

    async def complete(self, key: str, outcome: Record, *, ttl_ms: int) -> bool:
        """See `Cache.complete`."""
        routes = await self.client.opened()
        size = 0 if self.encryption is None else body_bytes(outcome)
        call = await off_loop(size, outcome_call, routes, key, outcome, ttl_ms, None, self.encryption, self.lives)
        return call.read(await self.client.reply(call))

    async def release(self, key: str, *, token: bytes) -> bool:
        """See `Cache.release`."""
        if len(token) != TOKEN_BYTES:
            raise ValueError("a token has 16 bytes")
        return bool(await self.client.run(RELEASE, key, token) == 1)

    async def get(self, key: str) -> Claim | None:
        """See `Cache.get`."""
        return await self._read(key, await self.client.run(GET, key))

    async def peek(self, key: str) -> Claim | None:
        """See `Cache.peek`."""
        (held,) = await self._peeked([key])
        if isinstance(held, RecordUnreadable):
            raise held
        return held

    async def peek_all(self, keys: Sequence[str]) -> list[Claim | RecordUnreadable | None]:
        """See `PeeksAtMany`. It is one command, where one server has all keys."""
        has_all = (await self.client.opened()).only is not None
        return await (self._peeked(keys) if has_all and keys else peek_each(self, keys))

    async def _peeked(self, keys: Sequence[str]) -> list[Claim | RecordUnreadable | None]:
        replies = await self.client.run_on(PEEK, keys)
        if not isinstance(replies, list) or len(replies) != len(keys):
            raise RecordUnreadable("Redis answered with something that are no records")
        return [await readable(self._read(key, reply)) for key, reply in zip(keys, replies, strict=True)]

    async def _read(self, key: str, reply: Reply) -> Claim | None:
        if reply is None:
            return None
        if isinstance(reply, ReplyError):
            raise faults.of_reply(reply)
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
            reply = await self.client.run(RESOLVE, key, outcome, *terms)
            if reply in _RESOLUTIONS:
                return _RESOLUTIONS[reply]
            if reply != _OTHER_RECORD:
                raise RecordUnreadable("a record is damaged, or of another version: it can't be resolved")
        return Resolution.OTHER_ATTEMPT

    async def purge(self, key: str, seen: Record, *, force: bool = False) -> Resolution:
        """See `Purges.purge`."""
        owner = seen.token + seen.attempt.to_bytes(4, "big")
        reply = await self.client.run(PURGE, key, owner, b"1" if force else b"0")
        if reply not in _RESOLUTIONS:
            raise RecordUnreadable("Redis answered with something that is no answer")
        return _RESOLUTIONS[reply]

    async def check_secret(self, namespace: str, values: Sequence[str], *, writes: bool) -> bool:
        """See `KeepsSecretCheck`. It is kept for good, beside the records: no scan of the namespace finds it."""
        given = [value.encode() for value in values]
        return bool(
            await self.client.run(CHECK_SECRET, f"{{{namespace}:secret}}", b"1" if writes else b"0", *given) == 1
        )

    async def keep_audit_line(self, namespace: str, line: bytes, *, most: int, ttl_ms: int) -> None:
        """See `KeepsAudit`. It is one command, and no scan of the namespace finds it."""
        await self.client.run(KEEP_AUDIT_LINE, audit_key(namespace), line, b"%d" % most, b"%d" % ttl_ms)

    async def audit_lines(self, namespace: str) -> list[bytes]:
        """See `KeepsAudit`."""
        key = audit_key(namespace)
        reply = await self.client.command(key, pack(b"LRANGE", key.encode(), b"0", b"-1"))
        if isinstance(reply, ReplyError):
            raise faults.of_reply(reply)
        return [line for line in reply if isinstance(line, bytes)]

    async def keep_process(self, namespace: str, name: str, entry: bytes, *, ttl_ms: int) -> None:
        """See `KeepsProcesses`. It is one command."""
        await self._keep_process(namespace, name, entry, ttl_ms)

    async def forget_process(self, namespace: str, name: str) -> None:
        """See `KeepsProcesses`."""
        await self._keep_process(namespace, name, b"", 0)

    async def _keep_process(self, namespace: str, name: str, entry: bytes, ttl_ms: int) -> None:
        key = processes_key(namespace)
        given = (name.encode(), entry, b"%d" % ttl_ms, b"%d" % MOST_PROCESSES)
        await self.client.run(KEEP_PROCESS, key, _ends_of(key), *given)

    async def processes(self, namespace: str) -> list[KeptProcess]:
        """See `KeepsProcesses`."""
        key = processes_key(namespace)
        reply = await self.client.run(PROCESSES, key, _ends_of(key), b"%d" % MOST_PROCESSES)
        return [KeptProcess(entry, remaining) for entry, remaining in zip(reply[::2], reply[1::2], strict=True)]

    async def outlast(self, key: str, submission: Record, *, ttl_ms: int) -> int:
        """See `KeepsSubmissions.outlast`."""
        return int(
            await self.client.run(OUTLAST, key, encode(submission, self.encryption, key.encode()), b"%d" % ttl_ms)
        )

    async def prolong(self, key: str, *, ttl_ms: int) -> bool:
        """See `KeepsSubmissions.prolong`."""
        return bool(await self.client.run(PROLONG, key, b"%d" % ttl_ms) == 1)

    def tie(self, ahead_ms: int) -> None:
        """See `KeepsSubmissions.tie`."""
        self.lives = SubmissionLives(ahead_ms)

    def submission_left_ms(self, key: str) -> int:
        """See `KeepsSubmissions.submission_left_ms`."""
        return 0 if self.lives is None else self.lives.take(key)

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
        deadline = asyncio.get_running_loop().time() + self.timeout
        sessions = await self.client.sessions(deadline)
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
        return await self.client.check()

    async def describe(self) -> Described:
        """See `Describes`."""
        return await self.client.describe()

    async def close(self) -> None:
        """See `Cache.close`. Claims that wait to be withdrawn get one more time-out; a call after this connects again."""
        await self.client.close()

    def _callback_calls(self) -> CallbackCalls:
        calls = RedisCalls(self, self.client, self.encryption)
        return calls if self.lives is None else ExecutionCalls(calls, self.lives)


def _is_text(key: bytes) -> bool:
    """Whether this can be a look-up key at all: a foreign key in the namespace must not end a scan."""
    return key.isascii()


def _ends_of(key: str) -> bytes:
    """Where the ends of a namespace's processes are, on the same node of a cluster as ``key``, which has their entries."""
    return f"{key}:ends".encode()
