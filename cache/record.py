"""The record of one idempotency key, and a claim to it. How it may change is the law in `oncegate.cache.transitions`."""
# Compiled: docs/decisions/0012-compiled.md

import enum
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from oncegate.cache.fields import fields_of
from oncegate.cache.trace import DEFAULT_ROUTE as DEFAULT_ROUTE  # these four are part of what a record is
from oncegate.cache.trace import MAX_ROUTE_BYTES as MAX_ROUTE_BYTES
from oncegate.cache.trace import NO_TRACE as NO_TRACE
from oncegate.cache.trace import Member
from oncegate.cache.trace import Trace as Trace

TOKEN_BYTES: Final = 16
FINGERPRINT_BYTES: Final = 16
LAST_INSTANT_MS: Final = 253402300799999
"""The end of the year 9999, in Unix ms: later instants can't be written down (RFC 3339)."""
DEAD_TOKEN: Final = bytes(TOKEN_BYTES)
"""Nobody's owner token: what a record carries after a release gave it back the state that the attempt had found."""


class State(enum.StrEnum):
    """A record's state. ``ABSENT`` is the lack of a record, named so that the table and an attempt can refer to it."""

    ABSENT = "absent"
    IN_FLIGHT = "in-flight"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"


FOUND: Final = (State.ABSENT, State.FAILED, State.UNKNOWN)
"""The states that an attempt can have found."""


class StoredResponse(NamedTuple):
    """A kept answer.

    ``headers`` are end-to-end field lines in their order, names in lower case. ``body`` is ``None`` where it was too
    large to keep. ``completed_at_ms`` is Unix time in milliseconds on the gateway's clock: for people, it decides nothing.
    (A tuple, since handlers give some, of types that a compiled class would refuse.)
    """

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes | None
    completed_at_ms: int


_new: Final = tuple.__new__


def stored_response(
    status: int, headers: tuple[tuple[bytes, bytes], ...], body: bytes | None, completed_at_ms: int
) -> StoredResponse:
    """A `StoredResponse`, in half the time that a named tuple takes to make itself."""
    return _new(StoredResponse, (status, headers, body, completed_at_ms))


class ReadyResponse:
    """A kept answer whose header lines are there as HTTP/1.1 sends them, each behind a CRLF.

    ``ended`` begins with the digits of `StoredResponse.completed_at_ms`, which few need as a number.
    """

    __slots__ = ("body", "ended", "lines", "status")

    def __init__(self, status: int, lines: bytes, body: bytes, ended: bytes) -> None:
        self.status = status
        self.lines = lines
        self.body = body
        self.ended = ended

    def stored(self) -> StoredResponse:
        """The same with its headers one by one."""
        digits = self.ended.partition(b",")[0]
        completed_at_ms = int(digits) if digits.isdigit() else -1
        return stored_response(self.status, tuple(fields_of(self.lines)), self.body, completed_at_ms)


MAX_SEQUENCE: Final = 2**63 - 1
"""The highest number of a command among those about its aggregate: databases have a column for it."""
_NOTHING: Final[frozenset[State]] = frozenset()
# Members of an enumeration take long to look up.
_IN_FLIGHT: Final = State.IN_FLIGHT
_ABSENT: Final = State.ABSENT
_UNKNOWN: Final = State.UNKNOWN


class Former(NamedTuple):
    """The attempt that was taken over when its lease was over: its owner may live, and gets the record back by a release.

    ``found`` and ``found_ms`` are what it had found itself; one that was taken over before it is not remembered.
    """

    token: bytes
    retention_ms: int
    found: State
    found_ms: int


# What each request makes is neither frozen nor a named tuple, and isn't made by what dataclasses generate: those
# take two to five times as long, also compiled. No instance is changed once it is given away.
@dataclass(slots=True, init=False)
class Record:
    """A record as it reads at one instant.

    ``token`` is the owner token of the last attempt, in every state. ``attempt`` counts from 1. ``lapsed`` tells an
    ``UNKNOWN`` that is an in-flight record past its lease from one that was written so. An attempt in flight also carries
    what it ``found`` (one of `FOUND`) with the ``found_ms`` that state had left to live, and
    ``retention_ms``: how long it outlives its lease. ``trace`` is for people, and not part of what makes records equal.

    ``submission`` marks the record of a command that is handed over to be processed later: its success says that the command
    was accepted, never that it was processed. ``former`` is there in flight, where the attempt has taken over a lapsed one.

    ``ready`` is there in place of the ``response`` where a claim asks for it so, and its lines are ready to be sent.
    """

    state: State
    token: bytes
    fingerprint: bytes
    attempt: int
    response: StoredResponse | None = None
    lapsed: bool = False
    found: State = State.ABSENT
    found_ms: int = 0
    retention_ms: int = 0
    trace: Trace = field(default=NO_TRACE, compare=False)
    submission: bool = False
    former: Former | None = None
    ready: ReadyResponse | None = None

    def __init__(
        self,
        state: State,
        token: bytes,
        fingerprint: bytes,
        attempt: int,
        response: StoredResponse | None = None,
        lapsed: bool = False,
        found: State = State.ABSENT,
        found_ms: int = 0,
        retention_ms: int = 0,
        trace: Trace = NO_TRACE,
        submission: bool = False,
        former: Former | None = None,
        ready: ReadyResponse | None = None,
    ) -> None:
        if len(token) != TOKEN_BYTES or len(fingerprint) != FINGERPRINT_BYTES or attempt < 1:
            raise ValueError("a record needs a 16-byte token, a 16-byte fingerprint and an attempt number from 1 up")
        self.state = state
        self.token = token
        self.fingerprint = fingerprint
        self.attempt = attempt
        self.response = response
        self.lapsed = lapsed
        self.found = found
        self.found_ms = found_ms
        self.retention_ms = retention_ms
        self.trace = trace
        self.submission = submission
        self.former = former
        self.ready = ready

    def whole_response(self) -> StoredResponse | None:
        """The response with its headers, also where it is there as the ``ready`` one."""
        return self.response if self.ready is None else self.ready.stored()

    def own(self) -> tuple[bool]:
        """The parts of `RECORD_MEMBERS`, in their order."""
        return (self.submission,)

    def given_back(self) -> "Record":
        """The record that a release of this attempt writes, to be kept for ``found_ms``: what the attempt has found.

        A lapsed attempt is its owner's again, who may still know the outcome; anything else is nobody's (`DEAD_TOKEN`).
        Raises ``ValueError`` where there was no record.
        """
        before, former, marked = self.attempt - 1, self.former, self.submission
        if former is None:
            return Record(self.found, DEAD_TOKEN, self.fingerprint, before, submission=marked)
        token, retention_ms, found, found_ms = former
        left = (found, found_ms, retention_ms)
        return Record(_IN_FLIGHT, token, self.fingerprint, before, None, False, *left, NO_TRACE, marked)


RECORD_MEMBERS: Final = (Member("submission", "a", lambda marked: 1 if marked else None, lambda of: of.get("a") == 1),)
"""The parts of a record and a claim beside what scripts read at fixed places, each with its bytes.

The first one is where scripts look for it: the first member of the record's object.
"""


def body_bytes(record: Record | None) -> int:
    """The size of the body that is kept in a record."""
    response = None if record is None else record.response
    return 0 if response is None or response.body is None else len(response.body)


@dataclass(slots=True, init=False)
class ClaimRequest:
    """A claim's arguments: the first attempt at a free key, and what it may take over.

    ``token`` is 16 random bytes, fresh for each claim. The attempt is in flight for ``lease_ms``; then it reads ``UNKNOWN`` for
    ``retention_ms`` more. ``takeover`` are the states that the claim may take over, where the fingerprint is the same.
    ``trace`` and ``submission`` are the record's (see `Record`), for as long as it is this attempt's. To a claim that has a span
    the record that it finds comes with its trace, too. ``as_sent``: that record's response may come as `Record.ready`.
    """

    token: bytes
    fingerprint: bytes
    lease_ms: int
    retention_ms: int
    takeover: frozenset[State]
    trace: Trace
    submission: bool
    as_sent: bool

    def __init__(
        self,
        token: bytes,
        fingerprint: bytes,
        lease_ms: int,
        retention_ms: int,
        takeover: frozenset[State] = _NOTHING,
        trace: Trace = NO_TRACE,
        submission: bool = False,
        as_sent: bool = False,
    ) -> None:
        self.token = token
        self.fingerprint = fingerprint
        self.lease_ms = lease_ms
        self.retention_ms = retention_ms
        self.takeover = takeover
        self.trace = trace
        self.submission = submission
        self.as_sent = as_sent

    def own(self) -> tuple[bool]:
        """As `Record.own`."""
        return (self.submission,)

    def first_attempt(self) -> Record:
        """The record in flight that the claim makes of a free key."""
        token, fingerprint, retention_ms = self.token, self.fingerprint, self.retention_ms
        return Record(
            _IN_FLIGHT, token, fingerprint, 1, None, False, _ABSENT, 0, retention_ms, self.trace, self.submission
        )

    def next_attempt(self, found: Record, found_ms: int) -> Record:
        """The record in flight that the claim makes of the one that it takes over, which had ``found_ms`` left to live."""
        token, attempt, left = self.token, found.attempt + 1, (found.state, found_ms, self.retention_ms)
        former = Former(found.token, found.retention_ms, found.found, found.found_ms) if found.lapsed else None
        return Record(
            _IN_FLIGHT, token, self.fingerprint, attempt, None, False, *left, self.trace, self.submission, former
        )

    def outcome(self, state: State, attempt: int, response: StoredResponse | None, took_ms: int, note: str) -> Record:
        """The record in which the attempt of this number ends, after ``took_ms``."""
        token, fingerprint, trace = self.token, self.fingerprint, self.trace.ended(took_ms, note)
        return Record(state, token, fingerprint, attempt, response, False, _ABSENT, 0, 0, trace, self.submission)


def takes_over(found: Record, takeover: frozenset[State], fingerprint: bytes, *, submission: bool = False) -> bool:
    """Whether what is ``found`` may be taken over by a request with this ``fingerprint``, in one of the states ``takeover``.

    A ``submission`` also takes over another of unknown outcome, as after a crash, whatever the policy says of those: to submit
    it once more is harmless, since the consumer processes one of the two.
    """
    lost = submission and found.submission and found.state is _UNKNOWN
    return (lost or found.state in takeover) and found.fingerprint == fingerprint


@dataclass(slots=True, init=False)
class Claim:
    """The answer to a claim: ``won`` says whether ``record`` is now the caller's own attempt in flight.

    ``remaining_ms`` is what the record has left to live (for one in flight: lease and retention together).
    """

    won: bool
    record: Record
    remaining_ms: int

    def __init__(self, won: bool, record: Record, remaining_ms: int) -> None:
        self.won = won
        self.record = record
        self.remaining_ms = remaining_ms
