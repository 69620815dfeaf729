"""Records for operators: lists, shows, finds, releases and resolves them, in any store."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from oncegate.app.operators.audit import Author
from oncegate.app.turns import others_first
from oncegate.cache.errors import RecordUnreadable
from oncegate.cache.record import MAX_ROUTE_BYTES, Claim, State
from oncegate.cache.store import Cache, peek_all
from oncegate.cache.trace import TRACE_TEXTS, trace_id_of
from oncegate.cache.transitions import Resolution, ResolveRequest
from oncegate.middleware.outcome.instants import instant
from oncegate.middleware.outcome.problems import original_result
from oncegate.middleware.rules.checks.address_check import AddressRules, changed_rules
from oncegate.middleware.rules.checks.secret_check import is_under_another_secret
from oncegate.middleware.rules.keys.digests import UNKEYED, Digests
from oncegate.middleware.rules.keys.key import (
    RECORD_ID,
    caller_of_id,
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
from oncegate.middleware.rules.policy import Policy

MOST_LISTED = 1000
AT_ONCE = 10
"""Records that are read, and decoded, before others have the loop: some tenths of a millisecond."""
UNREADABLE = "unreadable"
"""The state of a record that can't be read."""
MOST_STEPS = 50
"""Steps of a scan that one listing takes at most: what is left is behind its cursor."""
MOST_STEPS_FOR_A_KEY = 5000
"""The same, where all records of a key are looked for: millions of keys, some seconds of a Redis that goes on serving others."""
_CLAIM = claim_name("")


class NotARecord(ValueError):
    """The given value can't name a record, or can't become one. The text says why, in one line, and quotes nothing."""


class Records:
    """The records of one ``namespace``, which were made by one of ``policies``. A caller is given by header lines (text)."""

    def __init__(
        self,
        cache: Cache,
        namespace: str,
        policies: Sequence[Policy],
        digests: Digests = UNKEYED,
        rules: AddressRules | None = None,
    ) -> None:
        self.cache = cache
        self.peek_all = partial(peek_all, cache)
        """See `oncegate.cache.store.PeeksAtMany`."""
        self.namespace = namespace
        self._secrets = digests
        self._rules = rules or {}
        self._digests = [each for each in (digests, digests.former) if each is not None]
        self._scopes = list(dict.fromkeys(policy.scope_names for policy in policies))
        # A record doesn't say which route it is of. What is kept for too long is replayed; what is forgotten too soon is
        # executed again: so the longest time counts.
        self._ttl_ms = {
            state: max((policy.ttl_ms[state] for policy in policies), default=0)
            for state in (State.SUCCEEDED, State.FAILED)
        }

    async def is_under_another_secret(self) -> bool:
        """Whether the namespace's records are under a secret that is not given here, so that none is found by its key."""
        return await is_under_another_secret(self.cache, self.namespace, self._secrets)

    async def changed_rules(self) -> Sequence[str]:
        """Which rules that make addresses are not those of the gateway or app that last started, in words."""
        return await changed_rules(self.cache, self.namespace, self._rules)

    async def listing(self, state: str | None = None, *, cursor: str = "", limit: int = 100) -> dict[str, Any]:
        """About ``limit`` ``records`` that read as ``state`` (``None``: all), and the ``cursor`` to go on with: it is a bounded
        piece of work. An empty cursor: those were all.

        Raises `NotARecord` for a cursor that is none, `oncegate.cache.errors.CacheError`.
        """
        limit = max(1, min(limit, MOST_LISTED))
        found: dict[str, dict[str, Any]] = {}
        for _ in range(MOST_STEPS):
            try:
                page = await self.cache.scan(self.namespace, cursor=cursor, limit=limit)
            except ValueError as error:
                raise NotARecord(str(error)) from None
            for row in await self._rows([key for key in page.keys if key not in found]):
                if state is None or row["state"] == state:
                    found[row["id"]] = row
            cursor = page.cursor
            if not cursor or len(found) >= limit:
                break
        return {"records": list(found.values()), "cursor": cursor}

    async def show(self, identifier: str, *, response: bool = False) -> dict[str, Any] | None:
        """All that is known of one record; ``None`` where there is no such record.

        With its stored ``response``: for `oncegate.app.operators.showing.whole_record`, which reports it.
        """
        key = self.key_of(identifier)
        held = await (self.cache.get(key) if response else self.cache.peek(key))
        if held is None:
            return None
        record = held.record
        found = record.found.value if record.state is State.IN_FLIGHT or record.lapsed else None
        shown = {"id": identifier, **summarise(held), "found": found, "fingerprint": record.fingerprint.hex()}
        return shown | ({"response": original_result(record.response) if record.response else None} if response else {})

    async def rows(self, identifiers: Sequence[str]) -> list[dict[str, Any]]:
        """Those of these records that are there, as lists show them. Raises `NotARecord`."""
        return await self._rows([self.key_of(identifier) for identifier in identifiers])

    async def of_key(self, key: str | None, caller: Sequence[str] | None = None) -> Sequence[str]:
        """The ids of a key's records: of the caller who sends the header lines ``caller``, or of every caller. Without a key,
        those of all that this caller has sent.

        ``key`` is as it is sent, quoted or bare; a bare one may hold what only a quoted one may hold on the wire.
        """
        if key is None:
            if not caller:
                raise NotARecord(
                    "give a key, or the header lines of a caller: who sends none is no caller in particular"
                )
            callers = frozenset(self.digests_of(caller))
            return [identifier for identifier in await self._ids() if caller_of_id(identifier) in callers]
        plain = _plain_key(key)
        if caller is None:
            found = [await self._ids(key_digest(plain, each)) for each in self._digests]
            return [identifier for some in found for identifier in some]
        scopes = self.callers(caller)
        keys = [record_key(self.namespace, plain, scope, each) for each in self._digests for scope in scopes]
        return [each["id"] for each in await self._rows(list(dict.fromkeys(keys)))]

    async def _ids(self, digest: str | None = None) -> Sequence[str]:
        """The ids of all records, or of a key's."""
        found, cursor = dict[str, None](), ""
        for _ in range(MOST_STEPS_FOR_A_KEY):
            page = await self.cache.scan(self.namespace, digest, cursor=cursor, limit=MOST_LISTED)
            found.update(dict.fromkeys(map(record_id, page.keys)))
            cursor = page.cursor
            if not cursor:
                return [identifier for identifier in found if RECORD_ID.fullmatch(identifier)]
        raise NotARecord("too many records to look through all of them: give the caller, or the record's id")

    def callers(self, caller: Sequence[str]) -> Sequence[Sequence[bytes] | None]:
        """The callers that these header lines identify, one per scope that reads any of them; ``[None]`` without any line.

        Whom a token names is given by its claims, as lines ``jwt:sub: alice``: the token itself would have expired by now, and
        nothing distinguishes it from a forged one then.
        """
        if not caller:
            return [None]
        lines = _field_lines(caller)
        scopes = [scope_parts(pick(lines, frozenset(names)), names) for names in self._scopes]
        known = [scope for scope in scopes if scope is not None]
        if not known:
            names = dict.fromkeys(name.decode() for scope in self._scopes for name in scope)
            raise NotARecord(f"no header tells who the caller is: give {' or '.join(names)}")
        return known

    def digests_of(self, caller: Sequence[str]) -> list[str]:
        """The digests that the ids of this caller's records may have. Raises `NotARecord`."""
        return [scope_digest(scope, each) for scope in self.callers(caller) for each in self._digests]

    async def resolve(self, identifier: str, request: ResolveRequest, author: Author) -> Resolution:
        """Write an operator's resolution, and who its ``author`` is. The attempt's trace is kept, and the mark of a submission.

        Without a time to live it is kept for the longest that any of the policies keeps such an outcome.

        Raises `NotARecord`, `oncegate.cache.errors.CacheError`.
        """
        key = self.key_of(identifier)
        held = await self.cache.peek(key)
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
        return await self.cache.resolve(key, completed)

    def key_of(self, identifier: str) -> str:
        """The look-up key of a record's id. Raises `NotARecord`."""
        if not RECORD_ID.fullmatch(identifier):
            raise NotARecord("a record's id is two digests of 20 characters with a colon between")
        return key_of_id(self.namespace, identifier)

    async def _rows(self, keys: Sequence[str]) -> list[dict[str, Any]]:
        found = []
        for some in in_parts([key for key in keys if RECORD_ID.fullmatch(record_id(key))], AT_ONCE):
            for key, held in zip(some, await self.peek_all(some), strict=True):
                if held is not None:
                    shown = summarise(held) if isinstance(held, Claim) else {"state": UNREADABLE}
                    found.append({"id": record_id(key), **shown})
            await others_first()
        return found


def in_parts(keys: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    """Some of them at a time, ``size`` at most."""
    for begin in range(0, len(keys), size):
        yield keys[begin : begin + size]


def is_of_route(kept: str, route: str) -> bool:
    """Whether a record that has ``kept`` was made by the rules of ``route``: long patterns are cut off in it."""
    return kept.encode("utf-8", "replace") == route.encode("utf-8", "replace")[:MAX_ROUTE_BYTES]


def summarise(held: Claim) -> dict[str, Any]:
    """A record as lists show it; times in seconds, instants as RFC 3339, ``None`` for what isn't known."""
    record, trace = held.record, held.record.trace
    in_lease = record.state is State.IN_FLIGHT or record.lapsed
    return {
        "state": record.state.value,
        "attempt": record.attempt,
        "lapsed": record.lapsed,
        "submission": record.submission,
        "began_at": instant(trace.begun_at_ms),
        "ended_at": instant(record.response.completed_at_ms) if record.response else None,
        "took": None if trace.took_ms is None else trace.took_ms / 1000,
        **{name: getattr(trace, name) or None for name in TRACE_TEXTS},
        "trace_id": trace_id_of(trace.span) or None,
        "status": record.response.status if record.response else None,
        "lease_left": (held.remaining_ms - record.retention_ms) / 1000 if in_lease else None,
        "expires_in": held.remaining_ms / 1000,
    }


async def row(
    reading: Awaitable[Claim | None], describe: Callable[[Claim], dict[str, Any]] = summarise
) -> dict[str, Any] | None:
    """The record that is read, by ``describe``; of one that can't be read the state alone. ``None``: there is none."""
    try:
        held = await reading
    except RecordUnreadable:
        return {"state": UNREADABLE}
    return None if held is None else describe(held)


def _plain_key(key: str) -> str:
    try:
        line = key.encode()
    except UnicodeEncodeError:
        raise NotARecord("the key is no UTF-8 text") from None
    return parse_key(line) if key.startswith('"') else key


def _field_lines(lines: Iterable[str]) -> list[tuple[bytes, bytes]]:
    """Header lines as a person writes them, ``Name: value``; a token's claims as ``jwt:name: value``.

    Raises `NotARecord`, without quoting them.
    """
    fields = []
    for line in lines:
        name, colon, value = line.encode("utf-8", "surrogateescape").partition(b":")
        if name.strip() == b"jwt":  # a claim's name may be a URL
            claim, _, value = value.partition(b": ")
            fields.append((_CLAIM + claim, value))
        elif colon and name.strip():
            fields.append((name.strip().lower(), value))
        else:
            raise NotARecord("a caller is given by header lines: Authorization: Bearer ...")
    return fields
