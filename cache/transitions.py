"""The law of records: which event moves a record from which state to which, and what each call to a cache does by it.

``TRANSITIONS`` is the table; docs/state-machine.md is drawn from it. The functions take what is held, as it reads at one
instant, and a request; they give the answer and what becomes of the record, as a `Move`. They touch no store and read no
clock. A cache in this process executes them under a lock; Redis executes the same law as scripts (``redis/lua``), and a
test compares both over random histories, answer by answer and byte by byte.
"""
# Compiled: docs/decisions/0012-compiled.md

import enum
import functools
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeVar

from oncegate.cache.errors import IllegalTransition
from oncegate.cache.record import (
    DEAD_TOKEN,
    FOUND,
    NO_TRACE,
    Claim,
    ClaimRequest,
    Record,
    State,
    StoredResponse,
    Trace,
    takes_over,
)

Result = TypeVar("Result")


class Event(enum.StrEnum):
    """An event in the life of a record."""

    CLAIM = "claim"
    RENEW = "renew"
    COMPLETE = "complete"
    RELEASE = "release"
    LAPSE = "lapse"
    RESOLVE = "resolve"
    PURGE = "purge"
    OUTLAST = "outlast"
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

TRANSITIONS: tuple[Transition, ...] = (
    _row(State.ABSENT, Event.CLAIM, State.IN_FLIGHT, guard="new token, attempt 1"),
    _row(
        State.FAILED, Event.CLAIM, State.IN_FLIGHT, guard='on_error = "retry", same fingerprint: new token, attempt + 1'
    ),
    _row(
        State.UNKNOWN,
        Event.CLAIM,
        State.IN_FLIGHT,
        guard='on_unknown = "retry", or a submission sent again; same fingerprint: new token, attempt + 1',
    ),
    _row(State.IN_FLIGHT, Event.RENEW, State.IN_FLIGHT, guard="own token"),
    _row(State.IN_FLIGHT, Event.COMPLETE, *_OUTCOMES, guard="own token"),
    _row(State.IN_FLIGHT, Event.RELEASE, *FOUND, guard="own token: back to what the attempt found"),
    _row(State.IN_FLIGHT, Event.LAPSE, State.UNKNOWN, guard="the lease ran out; nothing is written, it reads so"),
    _row(State.UNKNOWN, Event.RENEW, State.IN_FLIGHT, guard="lapsed, own token, nobody took over"),
    _row(State.UNKNOWN, Event.COMPLETE, *_OUTCOMES, guard="lapsed, own token, nobody took over"),
    _row(State.UNKNOWN, Event.RELEASE, *FOUND, guard="lapsed, own token, nobody took over"),
    _row(State.ABSENT, Event.COMPLETE, *_OUTCOMES, guard="lapsed away while its owner lived on"),
    _row(State.UNKNOWN, Event.RESOLVE, State.SUCCEEDED, State.FAILED, State.ABSENT, guard="an operator"),
    _row(State.IN_FLIGHT, Event.RESOLVE, State.SUCCEEDED, State.FAILED, State.ABSENT, guard="an operator, by force"),
    *(_row(state, Event.PURGE, State.ABSENT, guard="an operator: the attempt that was seen") for state in _OUTCOMES),
    _row(State.IN_FLIGHT, Event.PURGE, State.ABSENT, guard="an operator, by force: the attempt that was seen"),
    _row(State.ABSENT, Event.OUTLAST, State.SUCCEEDED, guard="an accepted submission, which its execution outlives"),
    *(
        _row(state, Event.OUTLAST, state, guard="a submission or its execution: as long as the other")
        for state in _OUTCOMES
    ),
    _row(State.IN_FLIGHT, Event.EXPIRE, State.ABSENT, guard="lease and retention ran out"),
    _row(State.SUCCEEDED, Event.EXPIRE, State.ABSENT, guard="ttl ran out"),
    _row(State.FAILED, Event.EXPIRE, State.ABSENT, guard="error_ttl ran out"),
    _row(State.UNKNOWN, Event.EXPIRE, State.ABSENT, guard="retention ran out"),
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


class Resolution(enum.StrEnum):
    """The answer to an operator's `Cache.resolve`; only with ``RESOLVED`` was anything written."""

    RESOLVED = "resolved"
    ABSENT = "absent"
    IN_FLIGHT = "in-flight"
    SETTLED = "settled"
    OTHER_ATTEMPT = "other-attempt"


@dataclass(frozen=True, slots=True)
class ResolveRequest:
    """An operator's resolution: ``SUCCEEDED`` or ``FAILED``, to be kept for ``ttl_ms``, or ``None``: the key is free.

    ``force``: also of an attempt in flight. ``attempt`` is the one that was seen; 0: whichever it is. ``trace`` and
    ``submission`` are those of the record that is written.
    """

    state: State | None
    response: StoredResponse | None = None
    ttl_ms: int = 0
    force: bool = False
    attempt: int = 0
    trace: Trace = NO_TRACE
    submission: bool = False


_NOTHING: Final[frozenset[State]] = frozenset()
UNCHANGED: Final = -1
REMOVED: Final = 0


class Move(Generic[Result]):
    """A call's ``answer``, and what becomes of the record.

    ``ttl_ms`` is what the record has to live from now on, or ``UNCHANGED`` (nothing is written), or ``REMOVED``. ``record`` is
    the new one, which the store makes bytes of; ``None``: what is held stays as it is.
    """

    __slots__ = ("answer", "record", "ttl_ms")

    def __init__(self, answer: Result, ttl_ms: int = UNCHANGED, record: Record | None = None) -> None:
        self.answer = answer
        self.ttl_ms = ttl_ms
        self.record = record


def claim(held: Claim | None, request: ClaimRequest) -> Move[Claim]:
    """See `Cache.claim`."""
    check_takeover(request.takeover)
    ttl_ms = check_duration("lease_ms", request.lease_ms) + check_duration("retention_ms", request.retention_ms, 0)
    if held is None:
        check(State.ABSENT, Event.CLAIM, State.IN_FLIGHT)
        first = request.first_attempt()
        return Move(Claim(True, first, ttl_ms), ttl_ms, first)
    found = held.record
    if found.state is State.IN_FLIGHT and found.token == request.token:  # our own claim, sent again: an answer was lost
        return Move(Claim(True, found, held.remaining_ms))
    if not takes_over(found, request.takeover, request.fingerprint):
        return Move(held)
    check(found.state, Event.CLAIM, State.IN_FLIGHT)
    taken = request.next_attempt(found, held.remaining_ms)
    return Move(Claim(True, taken, ttl_ms), ttl_ms, taken)


def submit_again(request: ClaimRequest, answer: Claim) -> ClaimRequest | None:
    """The claim that takes over a submission of unknown outcome; ``None`` where ``answer`` stands."""
    if answer.won or not takes_over(answer.record, _NOTHING, request.fingerprint, submission=request.submission):
        return None
    return replace(request, takeover=request.takeover | {State.UNKNOWN})


def renew(held: Claim | None, token: bytes, lease_ms: int) -> Move[bool]:
    """See `Cache.renew`."""
    check_duration("lease_ms", lease_ms)
    if held is None or not _is_owner(held.record, token):
        return Move(False)
    check(held.record.state, Event.RENEW, State.IN_FLIGHT)
    # The record's own retention, not the caller's: by it readers find out whether the lease has lapsed.
    return Move(True, lease_ms + held.record.retention_ms)


def complete(held: Claim | None, outcome: Record, ttl_ms: int) -> Move[bool]:
    """See `Cache.complete`."""
    check_outcome(outcome.state)
    check_duration("ttl_ms", ttl_ms)
    if held is not None and not _is_owner(held.record, outcome.token):
        return Move(held.record.token == outcome.token)  # recorded by an earlier call, if it has our token
    check(held.record.state if held else State.ABSENT, Event.COMPLETE, outcome.state)
    return Move(True, ttl_ms, outcome)


def release(held: Claim | None, token: bytes) -> Move[bool]:
    """See `Cache.release`."""
    if held is None or not _is_owner(held.record, token):
        return Move(False)
    record = held.record
    if check(record.state, Event.RELEASE, record.found) is State.ABSENT:
        return Move(True, REMOVED)
    return Move(True, max(1, record.found_ms), record.given_back())


def resolve(held: Claim | None, request: ResolveRequest) -> Move[Resolution]:
    """See `Cache.resolve`."""
    target = check_resolution(request.state, request.ttl_ms, request.response)
    if held is None:
        return Move(Resolution.ABSENT)
    record = held.record
    if not targets(record.state, Event.RESOLVE):
        return Move(Resolution.SETTLED)
    if request.attempt not in (0, record.attempt):  # the operator has found out about another one
        return Move(Resolution.OTHER_ATTEMPT)
    if record.state is State.IN_FLIGHT and not request.force:  # it may live, and a retry would be executed beside it
        return Move(Resolution.IN_FLIGHT)
    if check(record.state, Event.RESOLVE, target) is State.ABSENT:
        return Move(Resolution.RESOLVED, REMOVED)
    return Move(Resolution.RESOLVED, request.ttl_ms, resolved_record(record, target, request))


def resolved_record(record: Record, target: State, request: ResolveRequest) -> Record:
    """``record`` as an operator resolves it."""
    return _unowned(record, state=target, response=request.response, trace=request.trace, submission=request.submission)


def _unowned(record: Record, **changes: Any) -> Record:
    """``record`` with ``changes``, and nobody's any more."""
    return replace(
        record,
        token=DEAD_TOKEN,
        lapsed=False,
        found=State.ABSENT,
        found_ms=0,
        retention_ms=0,
        former=None,
        **changes,
    )


def purge(held: Claim | None, seen: Record, *, force: bool) -> Move[Resolution]:
    """See `Purges.purge`."""
    if held is None:
        return Move(Resolution.ABSENT)
    record = held.record
    # The record may have become another attempt's since it was read, and that one's outcome must stay.
    if (record.token, record.attempt) != (seen.token, seen.attempt):
        return Move(Resolution.OTHER_ATTEMPT)
    if record.state is State.IN_FLIGHT and not force:
        return Move(Resolution.IN_FLIGHT)
    check(record.state, Event.PURGE, State.ABSENT)
    return Move(Resolution.RESOLVED, REMOVED)


def outlast(held: Claim | None, submission: Record, ttl_ms: int) -> Move[int]:
    """See `KeepsSubmissions.outlast`."""
    if held is None:
        check(State.ABSENT, Event.OUTLAST, submission.state)
        return Move(ttl_ms, ttl_ms, submission)
    record = held.record
    if record.fingerprint != submission.fingerprint:
        return Move(0)
    if record.state is State.IN_FLIGHT or record.lapsed:
        return Move(-1)
    if record.state is not State.SUCCEEDED or not record.submission:
        return Move(0)
    return Move(max(held.remaining_ms, ttl_ms), prolong(held, ttl_ms).ttl_ms)


def prolong(held: Claim | None, ttl_ms: int) -> Move[bool]:
    """See `KeepsSubmissions.prolong`."""
    if held is None or held.record.state is State.IN_FLIGHT or held.record.lapsed or held.remaining_ms >= ttl_ms:
        return Move(False)
    check(held.record.state, Event.OUTLAST, held.record.state)
    return Move(True, ttl_ms)


def _is_owner(record: Record, token: bytes) -> bool:
    """Whether ``token`` still owns the record: in flight under it, or lapsed and not taken over."""
    return record.token == token and (record.state is State.IN_FLIGHT or record.lapsed)


@functools.cache
def check_takeover(takeover: frozenset[State]) -> frozenset[State]:
    """``takeover``, if all of its states can be claimed; raises `IllegalTransition` otherwise."""
    for state in takeover:
        check(state, Event.CLAIM, State.IN_FLIGHT)
    return takeover


@functools.cache
def check_outcome(state: State) -> State:
    """``state``, if an attempt can end in it; raises `IllegalTransition` otherwise."""
    return check(State.IN_FLIGHT, Event.COMPLETE, state)


def check_resolution(state: State | None, ttl_ms: int, response: StoredResponse | None) -> State:
    """The state that an operator resolves to, ``ABSENT`` for ``None``; raises `IllegalTransition` for one that the law lacks.

    Raises ``ValueError`` where a record would be kept for no time, or a response for none.
    """
    if state is None or state is State.ABSENT:
        if response is not None:
            raise ValueError("a key that is set free has no response")
        return State.ABSENT
    check_duration("ttl_ms", ttl_ms)
    return check(State.UNKNOWN, Event.RESOLVE, state)


def check_duration(name: str, milliseconds: int, least: int = 1) -> int:
    """``milliseconds``, if at least ``least``; raises ``ValueError``, since a record without time to live breaks the law."""
    if milliseconds < least:
        raise ValueError(f"{name} must be at least {least} ms")
    return milliseconds
