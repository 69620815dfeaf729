"""Records for operators: lists, shows, finds, releases, resolves and counts them, in any store."""

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from oncegate.app.operators.audit import Author
from oncegate.cache.codec import BODILESS, HOP_BY_HOP
from oncegate.cache.errors import CacheError, RecordUnreadable
from oncegate.cache.record import TRACE_TEXTS, Claim, State, StoredResponse
from oncegate.cache.store import Cache
from oncegate.cache.transitions import Resolution, ResolveRequest
from oncegate.middleware.outcome.instants import instant
from oncegate.middleware.outcome.problems import original_result
from oncegate.middleware.outcome.responses import now_ms
from oncegate.middleware.rules.digests import UNKEYED, Digests
from oncegate.middleware.rules.key import (
    RECORD_ID,
    claim_name,
    key_digest,
    key_of_id,
    parse_key,
    pick,
    record_id,
    record_key,
    scope_digest,
    scope_parts,
)
from oncegate.middleware.rules.policy import OF_THE_MOMENT, OURS, Policy

log = logging.getLogger("oncegate.sampling")

MOST_LISTED = 1000
MOST_SECONDS = 10 * 366 * 86400.0
"""For which a resolved outcome may be kept; as `oncegate.middleware.rules.settings.Seconds`."""
MOST_STEPS = 50
"""Steps of a scan that one listing takes at most: what is left is behind its cursor."""
MOST_STEPS_FOR_A_KEY = 5000
"""The same, where all records of a key are looked for: millions of keys, some seconds of a Redis that goes on serving others."""
NOBODY = Author()
_UNREADABLE = "unreadable"
_PIECE = 100
_SHARE = 0.1
"""Of the time, at most as much is spent on counting."""


WHY_NOT = {
    Resolution.ABSENT: (404, "no such record"),
    Resolution.IN_FLIGHT: (
        409,
        "in flight: its owner is alive; only force does it, and its attempt runs on all the same",
    ),
    Resolution.SETTLED: (409, "its outcome is known: a record that succeeded or failed is left alone"),
    Resolution.OTHER_ATTEMPT: (409, "another attempt is there by now: look again"),
}
"""Why nothing was written, as a status and in words."""


class NotARecord(ValueError):
    """The given value can't name a record, or can't become one. The text says why, in one line, and quotes nothing."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Some records, and where to go on: ``""`` where those were all."""

    records: list[dict[str, Any]]
    cursor: str


class Records:
    """The records of one ``namespace``, which were made by one of ``policies``."""

    def __init__(self, cache: Cache, namespace: str, policies: Sequence[Policy], digests: Digests = UNKEYED) -> None:
        self._cache = cache
        self._namespace = namespace
        self._digests = [each for each in (digests, digests.former) if each is not None]
        self._scopes = list(dict.fromkeys(policy.scope_names for policy in policies))
        # A record doesn't say which route it is of. What is kept for too long is replayed; what is forgotten too soon is
        # executed again: so the longest time counts.
        self._ttl_ms = {
            state: max((policy.ttl_ms[state] for policy in policies), default=0)
            for state in (State.SUCCEEDED, State.FAILED)
        }

    async def listing(self, state: str | None = None, *, cursor: str = "", limit: int = 100) -> Listing:
        """About ``limit`` records that read as ``state`` (``None``: all). A bounded piece of work: go on with the cursor.

        Raises `NotARecord` for a cursor that is none, `oncegate.cache.errors.CacheError`.
        """
        limit = max(1, min(limit, MOST_LISTED))
        found: dict[str, dict[str, Any]] = {}
        for _ in range(MOST_STEPS):
            try:
                page = await self._cache.scan(self._namespace, cursor=cursor, limit=limit)
            except ValueError as error:
                raise NotARecord(str(error)) from None
            for row in await self._rows([key for key in page.keys if key not in found]):
                if state is None or row["state"] == state:
                    found[row["id"]] = row
            cursor = page.cursor
            if not cursor or len(found) >= limit:
                break
        return Listing(list(found.values()), cursor)

    async def show(self, identifier: str) -> dict[str, Any] | None:
        """All that is known of one record, its response's body included; ``None`` where there is no such record."""
        held = await self._cache.get(self._look_up_key(identifier))
        return None if held is None else describe(identifier, held)

    async def of_key(self, key: str, caller: Sequence[tuple[bytes, bytes]] | None = None) -> Sequence[str]:
        """The ids of a key's records: of the caller who sends the field lines ``caller``, or of every caller.

        ``key`` is as it is sent, quoted or bare; a bare one may hold what only a quoted one may hold on the wire.
        """
        plain = _plain_key(key)
        if caller is None:
            found = [await self._of_digest(key_digest(plain, each)) for each in self._digests]
            return [identifier for some in found for identifier in some]
        scopes = self.callers(caller)
        keys = dict.fromkeys(
            record_key(self._namespace, plain, scope, each) for each in self._digests for scope in scopes
        )
        held = await asyncio.gather(*[self._peek(look_up_key) for look_up_key in keys])
        return [record_id(key) for key, there in zip(keys, held, strict=True) if there is not None]

    async def _of_digest(self, digest: str) -> Sequence[str]:
        found, cursor = dict[str, None](), ""
        for _ in range(MOST_STEPS_FOR_A_KEY):
            page = await self._cache.scan(self._namespace, digest, cursor=cursor, limit=MOST_LISTED)
            found.update(dict.fromkeys(map(record_id, page.keys)))
            cursor = page.cursor
            if not cursor:
                return [identifier for identifier in found if RECORD_ID.fullmatch(identifier)]
        raise NotARecord("too many records to look through all of them: give the caller, or the record's id")

    def callers(self, caller: Sequence[tuple[bytes, bytes]]) -> Sequence[Sequence[bytes] | None]:
        """The callers that these field lines identify, one per scope that reads any of them; ``[None]`` without any line.

        Whom a token names is given by its claims, as lines ``jwt:sub: alice``, not by the token: it would have expired by the
        time that somebody looks, and then nothing distinguishes it from a forged one.
        """
        if not caller:
            return [None]
        lines = [(name if name.startswith(_CLAIM) else name.lower(), value) for name, value in caller]
        scopes = [scope_parts(pick(lines, frozenset(names)), names) for names in self._scopes]
        known = [scope for scope in scopes if scope is not None]
        if not known:
            names = dict.fromkeys(name.decode() for scope in self._scopes for name in scope)
            raise NotARecord(f"no header tells who the caller is: give {' or '.join(names)}")
        return known

    def digests_of(self, scopes: Sequence[Sequence[bytes] | None]) -> list[str]:
        """The digests of these callers that records' ids may have."""
        return [scope_digest(scope, each) for scope in scopes for each in self._digests]

    async def resolve(self, identifier: str, request: ResolveRequest, author: Author = NOBODY) -> Resolution:
        """Write an operator's resolution, and who its ``author`` is. The attempt's trace is kept, and the mark of a submission.

        Without a time to live it is kept for the longest that any of the policies keeps such an outcome.

        Raises `NotARecord`, `oncegate.cache.errors.CacheError`.
        """
        key = self._look_up_key(identifier)
        held = await self._cache.peek(key)
        if held is None:
            return Resolution.ABSENT
        completed = replace(
            request,
            ttl_ms=request.ttl_ms or (self._ttl_ms[request.state] if request.state else 0),
            # The attempt that was read is the one resolved, also where none was named: a takeover may come between.
            attempt=request.attempt or held.record.attempt,
            trace=replace(held.record.trace, note=author.note("resolved")),
            submission=held.record.submission,
        )
        return await self._cache.resolve(key, completed)

    def _look_up_key(self, identifier: str) -> str:
        if not RECORD_ID.fullmatch(identifier):
            raise NotARecord("a record's id is two digests of 20 characters with a colon between")
        return key_of_id(self._namespace, identifier)

    async def _peek(self, key: str) -> Claim | str | None:
        try:
            return await self._cache.peek(key)
        except RecordUnreadable:
            return _UNREADABLE

    async def _rows(self, keys: Sequence[str]) -> list[dict[str, Any]]:
        ours = [key for key in keys if RECORD_ID.fullmatch(record_id(key))]
        held = await asyncio.gather(*[self._peek(key) for key in ours])
        rows = []
        for key, there in zip(ours, held, strict=True):
            if isinstance(there, str):
                rows.append({"id": record_id(key), "state": there})
            elif there is not None:
                rows.append(summarise(record_id(key), there))
        return rows


def summarise(identifier: str, held: Claim) -> dict[str, Any]:
    """A record as lists show it; times in seconds, instants as RFC 3339, ``None`` for what isn't known."""
    record, trace = held.record, held.record.trace
    in_lease = record.state is State.IN_FLIGHT or record.lapsed
    return {
        "id": identifier,
        "state": record.state.value,
        "attempt": record.attempt,
        "lapsed": record.lapsed,
        "submission": record.submission,
        "began_at": instant(trace.begun_at_ms),
        "ended_at": instant(record.response.completed_at_ms) if record.response else None,
        "took": None if trace.took_ms is None else trace.took_ms / 1000,
        **{name: getattr(trace, name) or None for name in TRACE_TEXTS},
        "status": record.response.status if record.response else None,
        "lease_left": (held.remaining_ms - record.retention_ms) / 1000 if in_lease else None,
        "expires_in": held.remaining_ms / 1000,
    }


def describe(identifier: str, held: Claim) -> dict[str, Any]:
    """A record in full: `summarise`, what an attempt in flight found, and the response as it was kept."""
    record = held.record
    found = record.found.value if record.state is State.IN_FLIGHT or record.lapsed else None
    response = original_result(record.response) if record.response else None
    return summarise(identifier, held) | {"found": found, "response": response}


_CLAIM = claim_name("")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_NOT_KEPT = frozenset(name.decode() for name in (*HOP_BY_HOP, *OF_THE_MOMENT, *OURS)) | {
    "content-length",
    "cache-status",
}
_BODILESS = BODILESS | {205}


def response_to_keep(status: int, headers: Sequence[tuple[str, str]], body: bytes) -> StoredResponse:
    """A response as a replay will give it. Raises `NotARecord` for one that no upstream could have sent."""
    if not 200 <= status <= 599:
        raise NotARecord("a status is 200 to 599")
    if status in _BODILESS and body:
        raise NotARecord(f"a response of status {status} has no body")
    lines: list[tuple[bytes, bytes]] = []
    for name, value in headers:
        if not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise NotARecord("a header is a name and a value without line breaks")
        if name.lower() in _NOT_KEPT:
            raise NotARecord(f"{name.lower()} is not kept in a record")
        lines.append((name.lower().encode(), value.strip(" \t").encode("latin-1")))
    if body and all(name != b"content-type" for name, _ in lines):
        lines.append((b"content-type", b"application/json"))
    if status not in _BODILESS:
        lines.append((b"content-length", b"%d" % len(body)))
    return StoredResponse(status, tuple(lines), body, now_ms())


def _plain_key(key: str) -> str:
    try:
        line = key.encode()
    except UnicodeEncodeError:
        raise NotARecord("the key is no UTF-8 text") from None
    return parse_key(line) if key.startswith('"') else key


def header_lines(lines: Iterable[str]) -> list[tuple[bytes, bytes]]:
    """Header lines as a person writes them, ``Name: value``; a token's claims as ``jwt:name: value``.

    Raises `NotARecord`, without quoting them.
    """
    fields = []
    for line in lines:
        name, colon, value = line.partition(":")
        if name.strip() == "jwt":  # a claim's name may be a URL
            claim, colon, value = value.partition(": ")
            fields.append((claim_name(claim), value.strip(" ").encode("utf-8", "surrogatepass")))
            continue
        if not colon or not name.strip():
            raise NotARecord("a caller is given by header lines: Authorization: Bearer ...")
        fields.append(
            (name.strip().lower().encode("utf-8", "replace"), value.strip(" \t").encode("utf-8", "surrogateescape"))
        )
    return fields


async def sample(records: Records, interval: float, counted: Callable[[int], None]) -> None:
    """Count those that read unknown for ever, ``interval`` seconds after the last count ended; ``counted`` gets each whole one.

    Nothing keeps such a count: a record becomes unknown when its lease lapses, without any event. So all of them are read,
    a bounded number at a time, with pauses that leave the cache to requests.
    """
    while True:
        try:
            counted(await count_unknown(records))
        except CacheError as error:
            log.warning("unknown records were not counted: %s", error)
        await asyncio.sleep(interval)


async def count_unknown(records: Records) -> int:
    """How many records read unknown. Raises `oncegate.cache.errors.CacheError`."""
    found: set[str] = set()  # a scan may return a record twice
    cursor = ""
    while True:
        began = monotonic()
        listing = await records.listing(State.UNKNOWN.value, cursor=cursor, limit=_PIECE)
        found.update(record["id"] for record in listing.records)
        cursor = listing.cursor
        if not cursor:
            return len(found)
        await asyncio.sleep((monotonic() - began) * (1 / _SHARE - 1))
