"""The record of one idempotency key, and its law: the table of transitions between its states.

The law is the table ``TRANSITIONS``: which event may move a record from which state to which. The caches obey it, one
suite of tests walks every row of it against each cache, and the diagram in docs/state-machine.md is drawn from it.
"""
# Compiled: docs/decisions/0012-compiled.md

import enum
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from oncegate.cache.errors import IllegalTransition

TOKEN_BYTES: Final = 16
FINGERPRINT_BYTES: Final = 16
DEAD_TOKEN: Final = bytes(TOKEN_BYTES)
"""Nobody's owner token: what a record carries after a release gave it back the state that the attempt had found."""


class State(enum.StrEnum):
    """A record's state. ``ABSENT`` is the lack of a record, named so that the table and an attempt can refer to it."""

    ABSENT = "absent"
    IN_FLIGHT = "in-flight"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Event(enum.StrEnum):
    """What can happen to a record."""

    CLAIM = "claim"
    RENEW = "renew"
    COMPLETE = "complete"
    RELEASE = "release"
    LAPSE = "lapse"
    RESOLVE = "resolve"
    EXPIRE = "expire"


@dataclass(frozen=True, slots=True)
class Transition:
    """One row of the law. ``guard`` says, for people, what else must hold."""

    source: State
    event: Event
    targets: frozenset[State]
    guard: str


def _row(source: State, event: Event, *targets: State, guard: str) -> Transition:
    return Transition(source, event, frozenset(targets), guard)


_OUTCOMES: Final = (State.SUCCEEDED, State.FAILED, State.UNKNOWN)
_FOUND: Final = (State.ABSENT, State.FAILED, State.UNKNOWN)

TRANSITIONS: tuple[Transition, ...] = (
    _row(State.ABSENT, Event.CLAIM, State.IN_FLIGHT, guard="new token, attempt 1"),
    _row(
        State.FAILED, Event.CLAIM, State.IN_FLIGHT, guard='on_error = "retry", same fingerprint: new token, attempt + 1'
    ),
    _row(
        State.UNKNOWN,
        Event.CLAIM,
        State.IN_FLIGHT,
        guard='on_unknown = "retry", same fingerprint: new token, attempt + 1',
    ),
    _row(State.IN_FLIGHT, Event.RENEW, State.IN_FLIGHT, guard="own token"),
    _row(State.IN_FLIGHT, Event.COMPLETE, *_OUTCOMES, guard="own token"),
    _row(State.IN_FLIGHT, Event.RELEASE, *_FOUND, guard="own token: back to what the attempt found"),
    _row(State.IN_FLIGHT, Event.LAPSE, State.UNKNOWN, guard="the lease ran out; nothing is written, it reads so"),
    _row(State.UNKNOWN, Event.RENEW, State.IN_FLIGHT, guard="lapsed, own token, nobody took over"),
    _row(State.UNKNOWN, Event.COMPLETE, *_OUTCOMES, guard="lapsed, own token, nobody took over"),
    _row(State.UNKNOWN, Event.RELEASE, *_FOUND, guard="lapsed, own token, nobody took over"),
    _row(State.ABSENT, Event.COMPLETE, *_OUTCOMES, guard="lapsed away while its owner lived on"),
    _row(State.UNKNOWN, Event.RESOLVE, State.SUCCEEDED, State.FAILED, State.ABSENT, guard="an operator"),
    _row(State.IN_FLIGHT, Event.RESOLVE, State.SUCCEEDED, State.FAILED, State.ABSENT, guard="an operator, by force"),
    _row(State.IN_FLIGHT, Event.EXPIRE, State.ABSENT, guard="lease and unknown_ttl ran out"),
    _row(State.SUCCEEDED, Event.EXPIRE, State.ABSENT, guard="ttl ran out"),
    _row(State.FAILED, Event.EXPIRE, State.ABSENT, guard="error_ttl ran out"),
    _row(State.UNKNOWN, Event.EXPIRE, State.ABSENT, guard="unknown_ttl ran out"),
)

_LAW: Final = {(row.source, row.event): row.targets for row in TRANSITIONS}


def targets(source: State, event: Event) -> frozenset[State]:
    """The states that ``event`` may move a record in ``source`` to; empty where the law has no such row."""
    return _LAW.get((source, event), frozenset())


def check(source: State, event: Event, target: State) -> State:
    """``target``, if the law allows the move; raises `IllegalTransition` otherwise."""
    if target not in targets(source, event):
        raise IllegalTransition(f"no transition: {source.value} --{event.value}--> {target.value}")
    return target


TAKEABLE: Final = frozenset(row.source for row in TRANSITIONS if row.event is Event.CLAIM) - {State.ABSENT}
"""The states that a claim may take over, where the policy says so."""


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


MAX_GATEWAY_BYTES: Final = 40
MAX_NOTE_BYTES: Final = 200
MAX_ROUTE_BYTES: Final = 80
DEFAULT_ROUTE: Final = "*"


# What each request makes is neither frozen nor a named tuple, and isn't made by what dataclasses generate: those
# take two to five times as long, also compiled. No instance is ever changed.
@dataclass(slots=True, init=False, unsafe_hash=True)  # hashable, as dataclasses ask of a default
class Trace:
    """An attempt's trace for people: which gateway made it, when it began, how long it took, what was noted at its end.

    ``method`` and ``route`` are the request's method and the pattern of its route; empty where they aren't known.
    Times are Unix milliseconds on the gateway's clock, 0 where they aren't known; ``took_ms`` is ``None`` while it runs.
    Nothing here decides anything, and every part is cut to a size that the memory of a store can bear.
    """

    gateway: str
    begun_at_ms: int
    took_ms: int | None
    note: str
    method: str
    route: str

    def __init__(
        self,
        gateway: str = "",
        begun_at_ms: int = 0,
        took_ms: int | None = None,
        note: str = "",
        method: str = "",
        route: str = "",
    ) -> None:
        self.gateway = gateway
        self.begun_at_ms = begun_at_ms
        self.took_ms = took_ms
        self.note = note
        self.method = method
        self.route = route


_NO_TRACE: Final = Trace()


@dataclass(slots=True, init=False)
class Record:
    """A record as it reads at one instant.

    ``token`` is the owner token of the last attempt, in every state. ``attempt`` counts from 1. ``lapsed`` tells an
    ``UNKNOWN`` that is an in-flight record past its lease from one that was written so. An attempt in flight also carries
    what it ``found`` (``ABSENT``, ``FAILED`` or ``UNKNOWN``) with the ``found_ms`` that state had left to live, and
    ``retention_ms``: how long it outlives its lease. ``trace`` is for people, and not part of what makes records equal.

    ``submission`` marks the record of a command that is handed over to be processed later: its success says that the command
    was accepted, never that it was processed.
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
    trace: Trace = field(default=_NO_TRACE, compare=False)
    submission: bool = False

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
        trace: Trace = _NO_TRACE,
        submission: bool = False,
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
