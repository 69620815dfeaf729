"""`MemoryCache`, the reference: records in this process's memory, which no other process sees and no restart survives.

It stores the same bytes as Redis, and decides by the same rule when a lease has lapsed, so that what is tested
here is true there. No call awaits anything, which makes each of them atomic on its event loop; a lock makes them atomic
for event loops in other threads too (test clients run one for each request).
"""

import asyncio
import heapq
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from oncegate.cache.claim import Claim
from oncegate.cache.codec import decode, encode, encode_claim
from oncegate.cache.errors import CacheError, CacheFull
from oncegate.cache.law import check_duration, check_outcome, check_resolution, takeover_codes
from oncegate.cache.memory.expiry import ExpiringBytes, cost
from oncegate.cache.record import DEAD_TOKEN, Event, Record, State, StoredResponse, Trace, check
from oncegate.cache.store import Adopt, Page, Resolution, Then

DEFAULT_LIMIT_BYTES = 268435456

Answer = TypeVar("Answer")


class MemoryCache:
    """A `Cache` in memory, bounded in bytes.

    ``limit_bytes`` counts keys, records and a fixed overhead each. When it is reached, a new key's claim raises
    `CacheFull`: a record is never dropped before its time, and an outcome is stored even past the limit. ``clock`` tells
    seconds and never goes back.
    """

    def __init__(self, limit_bytes: int = DEFAULT_LIMIT_BYTES, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_bytes = limit_bytes
        self._clock = clock
        self._entries = ExpiringBytes()
        self._guard = threading.Lock()

    @property
    def size_bytes(self) -> int:
        """The records' size as counted against the limit, expired ones included until they are swept."""
        return self._entries.size

    def __len__(self) -> int:
        return len(self._entries)

    async def claim(
        self,
        key: str,
        *,
        token: bytes,
        fingerprint: bytes,
        lease_ms: int,
        retention_ms: int,
        takeover: frozenset[State] = frozenset(),
        adopt: Adopt | None = None,  # noqa: ARG002 - the answer is immediate: nobody can have stopped waiting for it
        trace: Trace | None = None,
        submission: bool = False,
    ) -> Claim:
        """See `Cache.claim`."""
        with self._guard:
            takeover_codes(takeover)
            remaining_ms = check_duration("lease_ms", lease_ms) + check_duration("retention_ms", retention_ms, 0)
            fresh = encode_claim(token, fingerprint, retention_ms, trace, submission=submission)
            now_ms = self._now_ms()
            self._entries.sweep(now_ms)
            held = self._read(key, now_ms)
            if held is None:
                self._make_room(cost(key, fresh), now_ms)
            elif held.record.state is State.IN_FLIGHT and held.record.token == token:
                return Claim(True, held.record, held.remaining_ms)
            elif held.record.state not in takeover or held.record.fingerprint != fingerprint:
                return held
            else:
                fresh = encode(_successor(held, token, retention_ms, trace, submission))
            check(held.record.state if held else State.ABSENT, Event.CLAIM, State.IN_FLIGHT)
            self._entries.put(key, fresh, now_ms + remaining_ms)
            return Claim(True, decode(fresh, remaining_ms), remaining_ms)

    def claim_soon(
        self,
        key: str,
        *,
        loop: asyncio.AbstractEventLoop,  # noqa: ARG002 - any will do
        token: bytes,
        fingerprint: bytes,
        lease_ms: int,
        retention_ms: int,
        takeover: frozenset[State],
        adopt: Adopt | None,  # noqa: ARG002 - see claim
        trace: Trace | None,
        then: Then[Claim],
    ) -> bool:
        """See `PromptCache`."""
        claim = self.claim(
            key,
            token=token,
            fingerprint=fingerprint,
            lease_ms=lease_ms,
            retention_ms=retention_ms,
            takeover=takeover,
            trace=trace,
        )
        then(_at_once(claim))
        return True

    async def extend(self, key: str, *, token: bytes, lease_ms: int) -> bool:
        """See `Cache.extend`."""
        with self._guard:
            check_duration("lease_ms", lease_ms)
            now_ms = self._now_ms()
            entry = self._entries.get(key, now_ms)
            held = self._read(key, now_ms)
            if entry is None or held is None or not _is_owner(held.record, token):
                return False
            check(held.record.state, Event.RENEW, State.IN_FLIGHT)
            # The record's own retention, not the caller's: by it readers find out whether the lease has lapsed.
            self._entries.put(key, entry.data, now_ms + lease_ms + held.record.retention_ms)
            return True

    async def complete(
        self,
        key: str,
        *,
        token: bytes,
        fingerprint: bytes,
        attempt: int,
        state: State,
        response: StoredResponse | None,
        ttl_ms: int,
        trace: Trace | None = None,
        submission: bool = False,
    ) -> bool:
        """See `Cache.complete`."""
        outcome = Record(state, token, fingerprint, attempt, response, trace=trace or Trace(), submission=submission)
        return self._complete(key, outcome, ttl_ms)

    def _complete(self, key: str, outcome: Record, ttl_ms: int) -> bool:
        with self._guard:
            check_outcome(outcome.state)
            check_duration("ttl_ms", ttl_ms)
            now_ms = self._now_ms()
            self._entries.sweep(now_ms)
            held = self._read(key, now_ms)
            if held is not None and not _is_owner(held.record, outcome.token):
                return held.record.state is not State.IN_FLIGHT and held.record.token == outcome.token
            check(held.record.state if held else State.ABSENT, Event.COMPLETE, outcome.state)
            self._entries.put(key, encode(outcome), now_ms + ttl_ms)
            return True

    def complete_soon(
        self,
        key: str,
        outcome: Record,
        *,
        loop: asyncio.AbstractEventLoop,  # noqa: ARG002 - any will do
        ttl_ms: int,
        then: Then[bool],
    ) -> bool:
        """See `PromptCache`."""
        then(self._complete(key, outcome, ttl_ms))
        return True

    async def release(self, key: str, *, token: bytes) -> bool:
        """See `Cache.release`."""
        with self._guard:
            now_ms = self._now_ms()
            held = self._read(key, now_ms)
            if held is None or not _is_owner(held.record, token):
                return False
            record = held.record
            check(record.state, Event.RELEASE, record.found)
            if record.found is State.ABSENT:
                self._entries.drop(key)
            else:
                found = Record(
                    record.found,
                    DEAD_TOKEN,
                    record.fingerprint,
                    record.attempt - 1,
                    submission=record.submission,
                )
                self._entries.put(key, encode(found), now_ms + max(1, record.found_ms))
            return True

    async def get(self, key: str) -> Claim | None:
        """See `Cache.get`."""
        with self._guard:
            return self._read(key, self._now_ms(), traced=True)

    async def peek(self, key: str) -> Claim | None:
        """See `Cache.peek`. The body is there anyway, so it stays."""
        with self._guard:
            return self._read(key, self._now_ms(), traced=True)

    async def resolve(
        self,
        key: str,
        *,
        state: State | None,
        response: StoredResponse | None = None,
        ttl_ms: int = 0,
        force: bool = False,
        attempt: int = 0,
        trace: Trace | None = None,
        submission: bool = False,
    ) -> Resolution:
        """See `Cache.resolve`."""
        with self._guard:
            target = check_resolution(state, ttl_ms, response)
            now_ms = self._now_ms()
            held = self._read(key, now_ms)
            if held is None:
                return Resolution.ABSENT
            record = held.record
            if record.state not in (State.UNKNOWN, State.IN_FLIGHT):
                return Resolution.SETTLED
            if attempt not in (0, record.attempt):
                return Resolution.OTHER_ATTEMPT
            if record.state is State.IN_FLIGHT and not force:
                return Resolution.IN_FLIGHT
            check(record.state, Event.RESOLVE, target)
            if target is State.ABSENT:
                self._entries.drop(key)
            else:
                resolved = Record(
                    target,
                    DEAD_TOKEN,
                    record.fingerprint,
                    record.attempt,
                    response,
                    trace=trace or Trace(),
                    submission=submission,
                )
                self._entries.put(key, encode(resolved), now_ms + ttl_ms)
            return Resolution.RESOLVED

    async def scan(self, namespace: str, key_digest: str | None = None, *, cursor: str = "", limit: int = 100) -> Page:
        """See `Cache.scan`. In the order of the keys; each call looks at all of them, which ``limit_bytes`` bounds."""
        with self._guard:
            prefix = f"{namespace}:{key_digest}:" if key_digest is not None else f"{namespace}:"
            now_ms = self._now_ms()
            ours = (key for key in self._entries if key.startswith(prefix) and key > cursor)
            found = heapq.nsmallest(max(1, limit), (key for key in ours if self._entries.get(key, now_ms)))
            return Page(tuple(found), found[-1] if len(found) == max(1, limit) else "")

    async def check(self) -> list[str]:
        """See `Cache.check`."""
        return []

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

    def _make_room(self, needed: int, now_ms: int) -> None:
        while self._entries.size + needed > self._limit_bytes:
            if not self._entries.sweep(now_ms):
                raise CacheFull(f"the memory cache holds {self._entries.size} bytes of at most {self._limit_bytes}")


def _at_once(call: Coroutine[Any, Any, Answer]) -> Answer | CacheError:
    """The result of one of the calls above, or its error; none of them waits."""
    try:
        call.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # what it returns travels in an exception without a type
    except CacheError as error:
        return error
    raise RuntimeError("a call of the memory cache waits")


def _is_owner(record: Record, token: bytes) -> bool:
    """Whether ``token`` still owns the record: in flight under it, or lapsed and not taken over."""
    return record.token == token and (record.state is State.IN_FLIGHT or record.lapsed)


def _successor(held: Claim, token: bytes, retention_ms: int, trace: Trace | None, submission: bool) -> Record:
    return Record(
        State.IN_FLIGHT,
        token,
        held.record.fingerprint,
        held.record.attempt + 1,
        found=held.record.state,
        found_ms=held.remaining_ms,
        retention_ms=retention_ms,
        trace=trace or Trace(),
        submission=submission,
    )
