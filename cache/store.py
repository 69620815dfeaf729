"""`Cache`: the protocol of all caches. One suite of behaviours (`oncegate.testing`) holds for all of them.

All times are whole milliseconds on the store's own clock. Every call is atomic, and bounded in time by the cache's own
time-out: it ends with an answer or with `CacheUnavailable`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from oncegate.cache.errors import RecordUnreadable
from oncegate.cache.record import Claim, ClaimRequest, Record
from oncegate.cache.transitions import Resolution, ResolveRequest


@dataclass(frozen=True, slots=True)
class Page:
    """Some look-up keys, in no order, perhaps none, and where to go on: ``""`` where that was all."""

    keys: tuple[str, ...]
    cursor: str


class Cache(Protocol):
    """A store of records, which moves them only as `TRANSITIONS` allows.

    ``key`` is a record's look-up key (see `oncegate.middleware.rules.keys.key.record_key`); ``token`` is 16 random bytes, fresh
    for each claim.
    """

    async def claim(self, key: str, request: ClaimRequest, *, adopt: Callable[[Claim], None] | None = None) -> Claim:
        """Make the record ours, in flight for the request's ``lease_ms``, or return the one that is there.

        It is won where there is no record, where the record already carries ``token`` in flight (our own claim, sent
        again), and where it reads as one of ``takeover`` with the same fingerprint. Otherwise nothing is written.
        Once the lease has run out, the record reads ``UNKNOWN`` for ``retention_ms`` more, then it is gone.

        Raises `CacheUnavailable` (a claim that was won, and whose answer arrives later, is given to ``adopt``, which must not
        block or raise; or withdrawn where that is ``None``), `RecordUnreadable`, or `CacheFull`.
        """
        ...

    async def renew(self, key: str, *, token: bytes, lease_ms: int) -> bool:
        """Renew the lease of a record that carries ``token`` in flight (lapsed or not). False: it is not ours any more."""
        ...

    async def complete(self, key: str, outcome: Record, *, ttl_ms: int) -> bool:
        """Write the outcome (``SUCCEEDED``, ``FAILED`` or ``UNKNOWN``), with its attempt's token, to be kept for ``ttl_ms``.

        True: it is recorded, now or by an earlier call with this token, or the record had lapsed away and is written anew.
        False: another owner has the record; nothing was written. Raises `CacheUnavailable`: it may or may not be written.
        """
        ...

    async def release(self, key: str, *, token: bytes) -> bool:
        """Give the record back the state, attempt number and remaining time that the attempt found: `Record.given_back`.

        False: the record does not carry ``token`` in flight; nothing was written. Raises `CacheUnavailable`.
        """
        ...

    async def get(self, key: str) -> Claim | None:
        """The record as it reads (never ``won``), with its trace, or ``None``. Raises `CacheUnavailable`, `RecordUnreadable`."""
        ...

    async def peek(self, key: str) -> Claim | None:
        """Like `get`, without reading the response's body: what was kept of it reads as empty. For listing many records."""
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


@runtime_checkable
class KeepsSecretCheck(Protocol):
    """A shared cache that also keeps by which secrets a namespace's records are addressed."""

    async def check_secret(self, namespace: str, values: Sequence[str], *, writes: bool) -> bool:
        """Whether what is kept of ``namespace`` has one of ``values``, or nothing is kept. ``writes``: keep ``values`` then.

        Raises `CacheUnavailable`.
        """
        ...


@runtime_checkable
class KeepsAudit(Protocol):
    """A cache that also keeps what operators changed in a namespace, for all who share it: lines, the last ones of them."""

    async def keep_audit_line(self, namespace: str, line: bytes, *, most: int, ttl_ms: int) -> None:
        """Keep ``line``, which has no line break, and of the others as many as are ``most`` with it; for ``ttl_ms`` from now on.

        It may go past the store's limit of memory. Raises `CacheUnavailable`.
        """
        ...

    async def audit_lines(self, namespace: str) -> list[bytes]:
        """The lines that are kept, the newest first. Raises `CacheUnavailable`."""
        ...


def audit_key(namespace: str) -> str:
    """Where a namespace's audit lines are kept, beside the records: no scan of it finds them."""
    return f"{{{namespace}:audit}}"


@dataclass(frozen=True, slots=True)
class KeptProcess:
    """A process's entry, and how long it has left to live."""

    entry: bytes
    remaining_ms: int


MOST_PROCESSES: Final = 1000
"""Processes of a namespace of which entries are kept; there is none of one more, until another one's is gone."""


@runtime_checkable
class KeepsProcesses(Protocol):
    """A cache that also keeps which processes of a namespace are up: an entry of each, which goes unless it is kept again."""

    async def keep_process(self, namespace: str, name: str, entry: bytes, *, ttl_ms: int) -> None:
        """Keep ``entry`` as that of the process ``name``, in place of what is there, for ``ttl_ms``.

        It may go past the store's limit of memory, and is bounded by `MOST_PROCESSES`. Raises `CacheUnavailable`.
        """
        ...

    async def forget_process(self, namespace: str, name: str) -> None:
        """Remove the entry of the process ``name``, if it is there. Raises `CacheUnavailable`."""
        ...

    async def processes(self, namespace: str) -> list[KeptProcess]:
        """The entries that are kept, in no order. Raises `CacheUnavailable`."""
        ...


def processes_key(namespace: str) -> str:
    """Where a namespace's processes are kept, beside the records, or what these places begin with."""
    return f"{{{namespace}:processes}}"


@dataclass(frozen=True, slots=True)
class Described:
    """A cache in numbers. Each of ``parts`` is a server, a file or a database: what there is of ``name``, ``used_bytes``,
    ``limit_bytes`` (0: none), ``policy`` (at the limit), ``persistence``, ``last_save`` and ``records``. ``advice`` is what
    `Cache.check` says.
    """

    kind: str
    parts: list[dict[str, str | int]]
    advice: list[str]


@runtime_checkable
class Describes(Protocol):
    """A cache that also says how it stands."""

    async def describe(self) -> Described:
        """How it stands, in one or two round trips. Raises `CacheUnavailable`, `CacheUnsupported`."""
        ...


@runtime_checkable
class Purges(Cache, Protocol):
    """A cache that can also remove records for good, whatever they hold."""

    async def purge(self, key: str, seen: Record, *, force: bool = False) -> Resolution:
        """Remove a record, unless it is another attempt's by now than ``seen``, or in flight and not by ``force``.

        Raises `CacheUnavailable`.
        """
        ...


@runtime_checkable
class KeepsSubmissions(Cache, Protocol):
    """A cache that also keeps the record of a submission for as long as its execution's, and the other way round."""

    past_maxmemory: bool
    """Whether `claim` may go past the store's limit: for those whose claims free more in the end than they take."""

    async def outlast(self, key: str, submission: Record, *, ttl_ms: int) -> int:
        """Let the record of an accepted ``submission`` live for ``ttl_ms`` at least, written again where it is gone.

        Returns how long it does. 0: another record is there; -1: it is still in flight. Raises `CacheUnavailable`.
        """
        ...

    async def prolong(self, key: str, *, ttl_ms: int) -> bool:
        """Let a record that has an outcome live for ``ttl_ms`` at least. False: it has none, or lives for longer."""
        ...

    def tie(self, ahead_ms: int) -> None:
        """From now on `complete` lets the submission live, too, where it records an execution's success: for ``ahead_ms`` longer.

        To be called before anybody uses the cache.
        """
        ...

    def submission_left_ms(self, key: str) -> int:
        """For how long the submission lives whose execution, under ``key``, was completed here just now; 0: not known. Once."""
        ...


@runtime_checkable
class PeeksAtMany(Cache, Protocol):
    """A cache that can also read many records in one step: where each would be a question of its own, and answered in turn."""

    async def peek_all(self, keys: Sequence[str]) -> list[Claim | RecordUnreadable | None]:
        """The answer of `Cache.peek` for each, or the error that it raises. Raises `CacheUnavailable`."""
        ...


async def peek_all(cache: Cache, keys: Sequence[str]) -> list[Claim | RecordUnreadable | None]:
    """The answer of `Cache.peek` for each of ``keys``, or the error where it can't be read. Raises `CacheUnavailable`."""
    return await (cache.peek_all(keys) if isinstance(cache, PeeksAtMany) else peek_each(cache, keys))


async def peek_each(cache: Cache, keys: Sequence[str]) -> list[Claim | RecordUnreadable | None]:
    """The same of any cache, by a question for each of ``keys``."""
    return await asyncio.gather(*[readable(cache.peek(key)) for key in keys])


async def readable(reading: Awaitable[Claim | None]) -> Claim | RecordUnreadable | None:
    """The claim that is read, or the error where it can't be."""
    try:
        return await reading
    except RecordUnreadable as error:
        return error


DEFAULT_TIMEOUT: Final = 0.5
"""Seconds that a call takes at most where a cache doesn't say."""


def timeout_of(cache: Cache) -> float:
    """The time-out of the cache's calls in seconds: its ``timeout``, where it has one."""
    timeout = getattr(cache, "timeout", DEFAULT_TIMEOUT)
    return float(timeout) if isinstance(timeout, float | int) else DEFAULT_TIMEOUT
