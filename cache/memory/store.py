"""`MemoryCache`, the reference: records in this process's memory, which no other process sees and no restart survives.

It is a lock, the functions of `oncegate.cache.transitions` and expiry. It stores the same bytes as Redis, so that what is tested
here is true there. No call awaits anything, which makes each of them atomic on its event loop; a lock makes them atomic
for event loops in other threads too (test clients run one for each request).
"""

import asyncio
import heapq
import threading
import time
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from oncegate.cache import transitions
from oncegate.cache.callbacks import Adopt, CallbackCache, CallbackCalls, Then
from oncegate.cache.codec import body_begins, decode, encode
from oncegate.cache.errors import CacheError, CacheFull
from oncegate.cache.memory.expiry import PARTS, ExpiringBytes, cost
from oncegate.cache.record import Claim, ClaimRequest, Record
from oncegate.cache.store import MOST_PROCESSES, Described, KeptProcess, Page, audit_key
from oncegate.cache.transitions import REMOVED, UNCHANGED, Move, Resolution, ResolveRequest

DEFAULT_LIMIT_BYTES = 268435456
_PEEK_BYTES = 16384
"""Of a record in a list: more than its head has. A body that is no longer stays."""
_MOST_LOOKED_AT = 2000
"""Keys after which a call of `MemoryCache.scan` ends with the part that it is in: some milliseconds."""

Result = TypeVar("Result")
Request = ParamSpec("Request")


class MemoryCache(CallbackCache, by_callback=True):
    """A `Cache` in memory, bounded in bytes.

    ``limit_bytes`` counts keys, records and a fixed overhead each. When it is reached, a new key's claim raises
    `CacheFull`: a record is never dropped before its time, and an outcome is stored even past the limit. ``clock`` tells
    seconds and never goes back.
    """

    __slots__ = ("_clock", "_entries", "_guard", "_limit_bytes", "_processes")

    def __init__(self, limit_bytes: int = DEFAULT_LIMIT_BYTES, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_bytes = limit_bytes
        self._clock = clock
        self._entries = ExpiringBytes()
        self._guard = threading.Lock()
        self._processes: dict[tuple[str, str], tuple[bytes, int]] = {}

    @property
    def size_bytes(self) -> int:
        """The records' size as counted against the limit, expired ones included until they are swept."""
        return self._entries.size

    def __len__(self) -> int:
        return len(self._entries)

    def clear(self) -> None:
        """Forget every record, as between two tests. An attempt that is running records its outcome all the same."""
        with self._guard:
            self._entries = ExpiringBytes()

    async def claim(self, key: str, request: ClaimRequest, *, adopt: Callable[[Claim], None] | None = None) -> Claim:  # noqa: ARG002 - nobody stops waiting
        """See `Cache.claim`."""
        return self._move(key, transitions.claim, request)

    async def renew(self, key: str, *, token: bytes, lease_ms: int) -> bool:
        """See `Cache.renew`."""
        return self._move(key, transitions.renew, token, lease_ms)

    async def complete(self, key: str, outcome: Record, *, ttl_ms: int) -> bool:
        """See `Cache.complete`."""
        return self._move(key, transitions.complete, outcome, ttl_ms)

    async def release(self, key: str, *, token: bytes) -> bool:
        """See `Cache.release`."""
        return self._move(key, transitions.release, token)

    async def get(self, key: str) -> Claim | None:
        """See `Cache.get`."""
        with self._guard:
            return self._read(key, self._now_ms(), traced=True)

    async def peek(self, key: str) -> Claim | None:
        """See `Cache.peek`."""
        with self._guard:
            now_ms = self._now_ms()
            entry = self._entries.get(key, now_ms)
        if entry is None:
            return None
        data, remaining_ms, size = entry.data, entry.expires_ms - now_ms, -1
        if len(data) > _PEEK_BYTES and body_begins(data) < len(data):
            data, size = data[: body_begins(data)], len(data)
        return Claim(False, decode(data, remaining_ms, traced=True, size=size), remaining_ms)

    async def resolve(self, key: str, request: ResolveRequest) -> Resolution:
        """See `Cache.resolve`."""
        return self._move(key, transitions.resolve, request)

    async def scan(self, namespace: str, key_digest: str | None = None, *, cursor: str = "", limit: int = 100) -> Page:
        """See `Cache.scan`. Part by part of what is held, in each in the order of the keys (a cursor is ``<part>.<key>``)."""
        part, _, after = (cursor or "0.").partition(".")
        if not (part.isascii() and part.isdigit() and len(part) < 5):
            raise ValueError("this is no cursor of ours")
        prefix = f"{namespace}:{key_digest}:" if key_digest is not None else f"{namespace}:"
        found: list[str] = []
        looked_at, limit = 0, max(1, limit)
        with self._guard:
            now_ms = self._now_ms()
            for number in range(int(part), PARTS):
                keys = self._entries.part(number)
                ours = (
                    key for key in keys if key.startswith(prefix) and key > after and self._entries.get(key, now_ms)
                )
                found += heapq.nsmallest(limit - len(found), ours)
                if len(found) == limit:
                    return Page(tuple(found), f"{number}.{found[-1]}")
                looked_at += len(keys)
                if looked_at >= _MOST_LOOKED_AT:
                    return Page(tuple(found), f"{number + 1}.")
                after = ""
        return Page(tuple(found), "")

    async def keep_audit_line(self, namespace: str, line: bytes, *, most: int, ttl_ms: int) -> None:
        """See `KeepsAudit`."""
        with self._guard:
            key, now_ms = audit_key(namespace), self._now_ms()
            held = self._entries.get(key, now_ms)
            lines = [line] if held is None else [line, *held.data.split(b"\n")]
            self._entries.put(key, b"\n".join(lines[:most]), now_ms + ttl_ms)

    async def audit_lines(self, namespace: str) -> list[bytes]:
        """See `KeepsAudit`."""
        with self._guard:
            held = self._entries.get(audit_key(namespace), self._now_ms())
            return [] if held is None else held.data.split(b"\n")

    async def keep_process(self, namespace: str, name: str, entry: bytes, *, ttl_ms: int) -> None:
        """See `KeepsProcesses`."""
        with self._guard:
            now_ms = self._now_ms()
            for key in [key for key, (_, ends_ms) in self._processes.items() if ends_ms <= now_ms]:
                del self._processes[key]
            if (namespace, name) in self._processes or len(self._processes) < MOST_PROCESSES:
                self._processes[namespace, name] = entry, now_ms + ttl_ms

    async def forget_process(self, namespace: str, name: str) -> None:
        """See `KeepsProcesses`."""
        with self._guard:
            self._processes.pop((namespace, name), None)

    async def processes(self, namespace: str) -> list[KeptProcess]:
        """See `KeepsProcesses`."""
        with self._guard:
            now_ms, held = self._now_ms(), self._processes
            return [
                KeptProcess(held[key][0], held[key][1] - now_ms)
                for key in held
                if key[0] == namespace and held[key][1] > now_ms
            ]

    async def check(self) -> list[str]:
        """See `Cache.check`."""
        return []

    async def describe(self) -> Described:
        """See `Describes`."""
        part: dict[str, str | int] = {
            "records": len(self),
            "used_bytes": self.size_bytes,
            "limit_bytes": self._limit_bytes,
        }
        return Described("memory", [part | {"persistence": "none: a restart forgets every record"}], [])

    async def close(self) -> None:
        """See `Cache.close`. The records stay for as long as this object does."""

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    def _read(self, key: str, now_ms: int, *, traced: bool = False) -> Claim | None:
        entry = self._entries.get(key, now_ms)
        if entry is None:
            return None
        remaining_ms = entry.expires_ms - now_ms
        return Claim(False, decode(entry.data, remaining_ms, traced=traced), remaining_ms)

    def _move(
        self,
        key: str,
        transition: Callable[Concatenate[Claim | None, Request], Move[Result]],
        *request: Request.args,
        **options: Request.kwargs,
    ) -> Result:
        """Do to the record what ``transition`` makes of it and of ``request``; its answer."""
        with self._guard:
            now_ms = self._now_ms()
            self._entries.sweep(now_ms)
            traced = bool(request) and isinstance(request[0], ClaimRequest) and request[0].trace.span != ""
            held = self._read(key, now_ms, traced=traced)
            move = transition(held, *request, **options)
            if move.ttl_ms == REMOVED:
                self._entries.drop(key)
            elif move.record is not None:
                data = encode(move.record)
                if held is None and isinstance(move.answer, Claim):  # an outcome is stored even past the limit
                    self._make_room(cost(key, data), now_ms)
                self._entries.put(key, data, now_ms + move.ttl_ms)
            elif move.ttl_ms != UNCHANGED:
                self._entries.prolong(key, now_ms + move.ttl_ms)
            return move.answer

    def _make_room(self, needed: int, now_ms: int) -> None:
        while self._entries.size + needed > self._limit_bytes:
            if not self._entries.sweep(now_ms):
                raise CacheFull(f"the memory cache holds {self._entries.size} bytes of at most {self._limit_bytes}")

    def _callback_calls(self) -> CallbackCalls:
        return _MemoryCalls(self._move)


class _MemoryCalls:
    """The calls of a `MemoryCache` by callback: each is made before it returns."""

    __slots__ = ("_move",)

    def __init__(self, move: Callable[..., Any]) -> None:
        self._move = move

    def start_claim(
        self,
        key: str,
        request: ClaimRequest,
        loop: asyncio.AbstractEventLoop,  # noqa: ARG002 - any will do
        adopt: Adopt | None,  # noqa: ARG002 - nobody stops waiting
        then: Then[Claim],
    ) -> asyncio.Task[None] | None:
        """See `CallbackCalls`."""
        answer: Claim | Exception
        try:
            answer = self._move(key, transitions.claim, request)
        except CacheError as error:
            answer = error
        then(answer)
        return None

    def start_complete(
        self,
        key: str,
        outcome: Record,
        loop: asyncio.AbstractEventLoop,  # noqa: ARG002 - any will do
        ttl_ms: int,
        then: Then[bool],
    ) -> None:
        """See `CallbackCalls`."""
        then(self._move(key, transitions.complete, outcome, ttl_ms))
