"""Checks a history: is there an order of claims, outcomes and lapses that the law allows, and that explains all that was seen?

What was seen of one caller's key are the answers that its clients got, and the executions at the upstream, each with the
instants between which it took place. What happened in the cache was not seen: each claim, outcome, release and lapse is put at
any place within the instants that are possible for it, and an order is searched in which each finds the state that it needs.
What ended before something else began comes before it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple


@dataclass(frozen=True)
class Answer:
    """What one request's client has got. ``kind`` is one of:

    ``executed`` (its own attempt's response), ``replayed``, ``in-flight``, ``unknown``, ``reused`` (another payload), ``failed``
    (its own attempt's outcome is unknown), ``refused`` (it was not executed), ``none`` (none came: anything may have happened).
    """

    began: float
    ended: float
    kind: str
    content: bytes = b""
    payload: bytes = b"p"


@dataclass(frozen=True)
class Execution:
    """What the upstream has seen: a request under the attempt's number, answered with ``content``, unless it was cut off."""

    began: float
    ended: float
    attempt: int
    content: bytes
    payload: bytes = b"p"
    cut: bool = False


@dataclass(frozen=True)
class Terms:
    """What was promised. ``records_first``: a response leaves after its record; not so where the cache may be away."""

    lease: float
    retries_unknown: bool = False
    records_first: bool = True


@dataclass
class History:
    """Of one caller and one key."""

    answers: list[Answer] = field(default_factory=list)
    executions: list[Execution] = field(default_factory=list)


class Unexplained(AssertionError):
    """No order explains a history."""


class Held(NamedTuple):
    """A record, as it may be at one place in the order. ``owner`` is the attempt that may still end it."""

    state: str = "absent"
    owner: str = ""
    attempt: int = 0
    content: bytes = b""
    payload: bytes = b""
    found: "Held | None" = None


ABSENT = Held()


@dataclass(frozen=True)
class Event:
    """Something that takes place at one instant from ``begin`` to ``end``; whatever is not ``must`` may never happen."""

    name: str
    kind: str
    begin: float
    end: float
    must: bool
    owner: str = ""
    content: bytes = b""
    payload: bytes = b""
    attempt: int = 0


def explain(history: History, terms: Terms) -> list[str]:
    """The names of the events in an order that explains ``history``. Raises `Unexplained`."""
    events = [*_events(history, terms)]
    order = _Search(events, terms).run()
    return [events[number].name for number in order]


def _events(history: History, terms: Terms) -> Iterator[Event]:
    own = _own_executions(history)
    for number, execution in enumerate(history.executions):
        owner, payload = f"execution {number}", execution.payload
        begins = [
            answer.began for answer in history.answers if answer.payload == payload and answer.began <= execution.began
        ]
        if not begins:
            raise Unexplained(f"{owner} was asked for by nobody: {execution}")
        begin = min(begins)
        yield Event(f"{owner} claims", "claim", begin, execution.began, True, owner, b"", payload, execution.attempt)
        answer = own.get(number)
        must = answer is not None and terms.records_first
        end = answer.ended if answer is not None and must else inf
        kind = "unknown" if execution.cut else "succeed"
        yield Event(f"{owner} is recorded", kind, execution.ended, end, must, owner, execution.content)
        yield Event(f"{owner} lapses", "lapse", begin + terms.lease, inf, False, owner)
    for number, answer in enumerate(history.answers):
        owner = f"request {number}"
        if answer.kind in ("none", "refused"):  # it may have claimed, and have come no further
            end = inf if answer.kind == "none" else answer.ended
            yield Event(f"{owner} claims", "claim", answer.began, end, False, owner, b"", answer.payload)
            yield Event(f"{owner} gives back", "release", answer.began, inf, False, owner)
            yield Event(f"{owner} lapses", "lapse", answer.began + terms.lease, inf, False, owner)
        elif answer.kind not in ("executed", "failed"):
            name = f"{owner} is answered {answer.kind}"
            kind = "reads unknown" if answer.kind == "unknown" else answer.kind
            must = terms.records_first or not _has_waited(answer, history)
            yield Event(name, kind, answer.began, answer.ended, must, owner, answer.content, answer.payload)


def _has_waited(answer: Answer, history: History) -> bool:
    """Whether it was there as the attempt ended: that passes its outcome on, which the cache may not have taken yet."""
    return answer.kind == "replayed" and any(
        answer.began <= each.ended <= answer.ended and (answer.content, answer.payload) == (each.content, each.payload)
        for each in history.executions
    )


def _own_executions(history: History) -> dict[int, Answer]:
    """The answer that each execution's own client got. Raises `Unexplained` for one that no execution has made."""
    own: dict[int, Answer] = {}
    for answer in history.answers:
        if answer.kind != "executed":
            continue
        for number, execution in enumerate(history.executions):
            within = answer.began <= execution.began and execution.ended <= answer.ended
            same = (answer.content, answer.payload) == (execution.content, execution.payload) and not execution.cut
            if within and same and number not in own:
                own[number] = answer
                break
        else:
            raise Unexplained(f"no execution has made this answer: {answer}")
    return own


class _Search:
    """A depth-first search, which comes to each set of events that have happened, and the record after them, once."""

    def __init__(self, events: list[Event], terms: Terms) -> None:
        self._events = events
        self._terms = terms
        self._must = sum(1 << number for number, event in enumerate(events) if event.must)
        self._seen: set[tuple[int, Held]] = set()
        self._best: tuple[int, Held] = (0, ABSENT)

    def run(self) -> list[int]:
        """The order. Raises `Unexplained`, with what could not be put anywhere."""
        stack: list[tuple[int, Held, tuple[int, ...]]] = [(0, ABSENT, ())]
        while stack:
            done, held, order = stack.pop()
            if done & self._must == self._must:
                return [*order]
            if (done & self._must).bit_count() > (self._best[0] & self._must).bit_count():
                self._best = done, held
            for number, after in self._following(done, held):
                state = done | 1 << number, after
                if state not in self._seen:
                    self._seen.add(state)
                    stack.append((*state, (*order, number)))
        done, held = self._best
        missing = [event for number, event in enumerate(self._events) if event.must and not done >> number & 1]
        raise Unexplained(f"with {held}, there is no place for {missing}")

    def _following(self, done: int, held: Held) -> Iterator[tuple[int, Held]]:
        """What may happen next, and the record after it."""
        left = [number for number in range(len(self._events)) if not done >> number & 1]
        by = min((self._events[number].end for number in left if self._events[number].must), default=inf)
        # What must not happen, but may, comes first here, so that it is tried last.
        for number in sorted(left, key=lambda each: self._events[each].must):
            event = self._events[number]
            if event.begin > by:
                continue
            if (after := _after(held, event, self._terms)) is not None:
                yield number, after


def _after(held: Held, event: Event, terms: Terms) -> Held | None:
    """The record after ``event``; ``None`` where the event can't happen to it."""
    match event.kind:
        case "claim":
            return _claimed(held, event, terms)
        case "succeed" | "unknown":
            return _ended(held, event)
        case "lapse":
            return held._replace(state="unknown") if _is_owner(held, event) and held.state == "in-flight" else None
        case "release":
            return held.found if _is_owner(held, event) else None
        case "replayed":
            same = (held.content, held.payload) == (event.content, event.payload)
            return held if held.state == "succeeded" and same else None
        case "in-flight" | "reads unknown":
            same = (held.state, held.payload) == (event.kind.removeprefix("reads "), event.payload)
            return held if same else None
        case "reused":
            return held if held.state != "absent" and held.payload != event.payload else None
    raise ValueError(event.kind)


def _claimed(held: Held, event: Event, terms: Terms) -> Held | None:
    taken = held.state == "unknown" and terms.retries_unknown and held.payload == event.payload
    if held.state != "absent" and not taken:
        return None
    attempt = held.attempt + 1
    if event.attempt not in (0, attempt):
        return None
    found = held._replace(found=None)
    return Held("in-flight", event.owner, attempt, b"", event.payload, found)


def _is_owner(held: Held, event: Event) -> bool:
    return held.owner == event.owner


def _ended(held: Held, event: Event) -> Held | None:
    if not _is_owner(held, event) or held.state == "succeeded":
        return None
    state, content = ("succeeded", event.content) if event.kind == "succeed" else ("unknown", b"")
    return Held(state, "", held.attempt, content, held.payload)
