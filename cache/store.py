"""`Cache`: the protocol of all caches. One suite of behaviours (`oncegate.testing`) holds for all of them.

All times are whole milliseconds on the store's own clock. Every call is atomic, and bounded in time by the cache's own
time-out: it ends with an answer or with `CacheUnavailable`.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar, cast

from oncegate.cache.errors import CacheError
from oncegate.cache.record import Claim, ClaimRequest, Record
from oncegate.cache.transitions import Resolution, ResolveRequest

Adopt = Callable[[Claim], None]
"""Called with a claim that was won after its caller had stopped waiting. It must not block and must not raise."""


@dataclass(frozen=True, slots=True)
class Page:
    """Some look-up keys, in no order, perhaps none, and where to go on: ``""`` where that was all."""

    keys: tuple[str, ...]
    cursor: str


Answer = TypeVar("Answer", contravariant=True)


class Then(Protocol[Answer]):
    """Called with an answer, or with the error in its place. It must not block and must not raise."""

    def __call__(self, answer: Answer | CacheError, /) -> None:
        """Take the answer."""


class PromptCache(Protocol):
    """What a cache may offer in addition: the two calls of a first request with callbacks, without a coroutine.

    ``then`` is called once, perhaps before the call returns, with what the call of that name in `Cache` would return or raise.
    ``loop`` is the running one, which would cost a system call to look up.
    ``False``: that needs waiting (there is no connection yet, say), and ``then`` is never called: use the coroutine. A class
    derived from one that offers them offers them itself, or its coroutines are called.
    """

    def claim_soon(
        self,
        key: str,
        request: ClaimRequest,
        *,
        loop: asyncio.AbstractEventLoop,
        adopt: Adopt | None,
        then: Then[Claim],
    ) -> bool:
        """See `Cache.claim`."""
        ...

    def complete_soon(
        self, key: str, outcome: Record, *, loop: asyncio.AbstractEventLoop, ttl_ms: int, then: Then[bool]
    ) -> bool:
        """See `Cache.complete`."""
        ...


class Cache(Protocol):
    """Holds records, and moves them only as `oncegate.cache.transitions.TRANSITIONS` allows.

    ``key`` is a record's look-up key (see `oncegate.middleware.rules.key.record_key`); ``token`` is 16 random bytes, fresh for
    each claim.
    """

    async def claim(self, key: str, request: ClaimRequest, *, adopt: Adopt | None = None) -> Claim:
        """Make the record ours, in flight for the request's ``lease_ms``, or return the one that is there.

        It is won where there is no record, where the record already carries ``token`` in flight (our own claim, sent
        again), and where it reads as one of ``takeover`` with the same fingerprint. Otherwise nothing is written.
        Once the lease has run out, the record reads ``UNKNOWN`` for ``retention_ms`` more, then it is gone.

        Raises `CacheUnavailable` (a claim whose answer arrives later is given to ``adopt``, or withdrawn where that is
        ``None``), `RecordUnreadable`, or `CacheFull`.
        """
        ...

    async def extend(self, key: str, *, token: bytes, lease_ms: int) -> bool:
        """Renew the lease of a record that carries ``token`` in flight (lapsed or not). False: it is not ours any more."""
        ...

    async def complete(self, key: str, outcome: Record, *, ttl_ms: int) -> bool:
        """Write the outcome (``SUCCEEDED``, ``FAILED`` or ``UNKNOWN``), with its attempt's token, to be kept for ``ttl_ms``.

        True: it is recorded, now or by an earlier call with this token, or the record had lapsed away and is written anew.
        False: another owner has the record; nothing was written. Raises `CacheUnavailable`: it may or may not be written.
        """
        ...

    async def release(self, key: str, *, token: bytes) -> bool:
        """Give the record back the state, attempt number and remaining time that the attempt found, under a dead token.

        False: the record does not carry ``token`` in flight; nothing was written. Raises `CacheUnavailable`.
        """
        ...

    async def get(self, key: str) -> Claim | None:
        """The record as it reads (never ``won``), with its trace, or ``None``. Raises `CacheUnavailable`, `RecordUnreadable`."""
        ...

    async def peek(self, key: str) -> Claim | None:
        """As `get`, without reading the response's body: what was kept of it reads as empty. For listing many records."""
        ...

    async def resolve(self, key: str, request: ResolveRequest) -> Resolution:
        """Write what an operator found out about an attempt whose outcome nobody knows.

        Only an unknown record is touched, lapsed or written so; one in flight too with ``force``; and where ``attempt`` is
        given, only while it is the record's. Fingerprint and attempt number stay, under a dead token: an owner that comes
        late can't overwrite what was resolved. The exception is a key that was set free and is still free when its owner
        completes after all: that is written, as of any record that is gone, since what is known then is better than a hole.

        Raises `CacheUnavailable`, or `RecordUnreadable`: then nothing was written.
        """
        ...

    async def scan(self, namespace: str, key_digest: str | None = None, *, cursor: str = "", limit: int = 100) -> Page:
        """Look-up keys in ``namespace``, of one idempotency key's digest or of all, about ``limit`` at a time.

        One call does a bounded amount of work. A key that is there from the first call to the last is returned at least once; one
        that comes or goes meanwhile, perhaps; a key may be returned twice.

        Raises `CacheUnavailable`, ``ValueError`` for a bad cursor.
        """
        ...

    async def check(self) -> list[str]:
        """One round trip to the store: advice to the operator, a line each. Raises `CacheUnavailable`, `CacheUnsupported`."""
        ...

    async def close(self) -> None:
        """Close connections. Idempotent; never raises."""
        ...


def prompt(cache: Cache) -> PromptCache | None:
    """``cache``, if its very class offers the calls of a `PromptCache`.

    A class derived from one that does may have coroutines of its own, and so may an object: these must not be bypassed.
    """
    offered, own = vars(type(cache)), getattr(cache, "__dict__", {})
    if not {"claim_soon", "complete_soon"} <= offered.keys() or not own.keys().isdisjoint({"claim", "complete"}):
        return None
    return cast(PromptCache, cache)
