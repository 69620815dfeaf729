"""A search of everything that can happen to one record in a small world, in which each step is a call of the law itself.

A few attempts, each under a token of its own, claim, renew, complete and release in any order and at any instant, beside an
operator; an answer may get lost, so that a call is sent again, and an attempt that died is one that makes no further step.
After each step what the law answered, and what is held, is compared with what was promised (`Promises`). These know nothing
of bytes, found states or takeovers: they say who may have begun, and what was recorded.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from oncegate.cache.codec import decode
from oncegate.cache.errors import IllegalTransition
from oncegate.cache.record import Claim, ClaimRequest, Record, State
from oncegate.cache.transitions import Resolution, ResolveRequest
from tests.cache.test_law import Functions

PAYLOAD, OTHER_PAYLOAD = b"p" * 16, b"q" * 16
OUTCOMES = (State.SUCCEEDED, State.FAILED, State.UNKNOWN)


@dataclass(frozen=True)
class World:
    """What there is: an attempt for each of ``payloads``, which live as long as the milliseconds say."""

    payloads: tuple[bytes, ...] = (PAYLOAD, PAYLOAD)
    takeover: frozenset[State] = frozenset({State.FAILED, State.UNKNOWN})
    outcomes: tuple[State, ...] = OUTCOMES
    lease_ms: int = 2
    retention_ms: int = 2
    ttl_ms: int = 2
    has_operator: bool = False
    submissions: bool = False

    def token(self, attempt: int) -> bytes:
        return bytes([ord("a") + attempt]) * 16


class Held(NamedTuple):
    """What the store holds: bytes, and the milliseconds that they have left to live. No bytes: no record."""

    data: bytes | None = None
    left: int = 0

    def read(self) -> Claim | None:
        return None if self.data is None else Claim(False, decode(self.data, self.left), self.left)


def answer_of(law: Any, held: Held, name: str, arguments: dict[str, Any]) -> tuple[Any, Held]:
    """What a function of ``law`` answers, and what is held then: the one place that knows how a move is carried out."""
    functions = Functions(law)
    functions.data, functions.left = held
    answer = getattr(functions, name)(**arguments)
    return Claim(*answer) if name == "claim" else answer, Held(functions.data, functions.left)


class Call(NamedTuple):
    """A call of the law: the function's name, its arguments, and which attempt makes it (-1: an operator)."""

    name: str
    arguments: dict[str, Any]
    attempt: int = -1


class Promises(NamedTuple):
    """What was promised so far, from the answers alone.

    ``phases`` are those of the attempts: ``new``, ``holds``, ``ended``; ``numbers`` those that they got, 0 for none.
    ``owner`` is the attempt that holds the key; ``former`` the one that it took over, which had not ended; ``kept`` the outcome
    that was recorded last, and by whom (-1: nobody of these), and ``kept_ms`` for how long it is still to live; ``begun`` counts
    the attempts of the record that were not given back; ``lease`` is what the owner's has left; ``payload`` is the record's.
    """

    phases: tuple[str, ...]
    numbers: tuple[int, ...]
    owner: int | None = None
    former: int | None = None
    kept: tuple[int, State] | None = None
    kept_ms: int = 0
    begun: int = 0
    lease: int = 0
    payload: bytes = b""
    before: tuple[State, int] = (State.ABSENT, 0)
    """What the owner found: the state as it read, and how long it had to live."""
    before_former: tuple[State, int] = (State.ABSENT, 0)
    """The same of ``former``, which gets it back."""
    outlives_ms: int = 0
    """For how long an accepted submission was promised to be there."""


class Broken(AssertionError):
    """A promise was broken; ``history`` are the steps that lead there."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.history: list[str] = []

    def __str__(self) -> str:
        return "\n".join([*self.history, f"-> {super().__str__()}"])


def holds(condition: object, what: str) -> None:
    """Raises `Broken` unless the condition does."""
    if not condition:
        raise Broken(what)


def put(values: tuple[Any, ...], place: int, value: object) -> tuple[Any, ...]:
    """``values`` with another one at ``place``."""
    return (*values[:place], value, *values[place + 1 :])


@dataclass
class Search:
    """All that can happen under ``law`` in ``world``. ``on_call`` gets each call once, with what was held before and after it."""

    world: World
    law: Any
    on_call: Callable[[Held, Call, Any, Held], None] | None = None
    states: int = 0
    calls: dict[Any, tuple[Any, Held]] = field(default_factory=dict)

    def run(self) -> None:
        """Raises `Broken` with the shortest history that leads to a broken promise."""
        first = (Held(), Promises(("new",) * len(self.world.payloads), (0,) * len(self.world.payloads)))
        parents: dict[Any, tuple[Any, str]] = {first: (None, "")}
        front = [first]
        while front:
            following = []
            for state in front:
                for label, step in self._steps(state):
                    try:
                        reached = step()
                    except (Broken, IllegalTransition, ValueError) as error:
                        broken = error if isinstance(error, Broken) else Broken(str(error))
                        broken.history = [*self._history(parents, state), label]
                        raise broken from error
                    if reached not in parents:
                        parents[reached] = (state, label)
                        following.append(reached)
            front = following
        self.states = len(parents)

    @staticmethod
    def _history(parents: dict[Any, tuple[Any, str]], state: Any) -> list[str]:
        steps: list[str] = []
        while state is not None:
            state, label = parents[state]
            steps.append(label)
        return steps[-2::-1]

    def _steps(self, state: tuple[Held, Promises]) -> Iterator[tuple[str, Callable[[], tuple[Held, Promises]]]]:
        held, promises = state
        if held.data is not None:
            yield "1 ms passes", lambda: self._pass(held, promises)
        for call in self._possible(held, promises):
            yield f"{call.name} {call.attempt} {call.arguments}", lambda call=call: self._call(held, promises, call)  # type: ignore[misc]  # mypy does not infer a default of its own name

    def _possible(self, held: Held, promises: Promises) -> Iterator[Call]:
        world = self.world
        for attempt, payload in enumerate(world.payloads):
            token = world.token(attempt)
            request = ClaimRequest(
                token,
                payload,
                world.lease_ms,
                world.retention_ms,
                world.takeover,
                submission=world.submissions,
            )
            # A claim is sent again where its answer was lost; also when its lease is over, a few times.
            if promises.phases[attempt] != "ended" and promises.begun <= len(world.payloads):
                yield Call("claim", {"request": request}, attempt)
            if promises.phases[attempt] == "holds":
                yield Call("renew", {"token": token, "lease_ms": world.lease_ms}, attempt)
                yield Call("release", {"token": token}, attempt)
            recorded = promises.kept is not None and promises.kept[0] == attempt
            if promises.phases[attempt] == "holds" or (recorded and promises.numbers[attempt]):
                for outcome in world.outcomes:
                    record = Record(outcome, token, payload, promises.numbers[attempt], submission=world.submissions)
                    yield Call("complete", {"outcome": record, "ttl_ms": world.ttl_ms}, attempt)
        if world.has_operator:
            yield from self._by_operators(held)
        if world.submissions:
            accepted = Record(State.SUCCEEDED, world.token(0), world.payloads[0], 1, submission=True)
            yield Call("outlast", {"submission": accepted, "ttl_ms": world.ttl_ms + 1})
            yield Call("prolong", {"ttl_ms": world.ttl_ms + 1})

    def _by_operators(self, held: Held) -> Iterator[Call]:
        for force in (False, True):
            for seen in (0, 1, 2):
                for target in (State.SUCCEEDED, State.FAILED, None):
                    ttl_ms = 0 if target is None else self.world.ttl_ms
                    request = ResolveRequest(target, None, ttl_ms, force, seen)
                    yield Call("resolve", {"request": request})
            for place in range(len(self.world.payloads)):
                for number in (1, 2):
                    seen_record = Record(State.SUCCEEDED, self.world.token(place), PAYLOAD, number)
                    yield Call("purge", {"seen": seen_record, "force": force})

    def _pass(self, held: Held, promises: Promises) -> tuple[Held, Promises]:
        held = Held(held.data, held.left - 1) if held.left > 1 else Held()
        promises = promises._replace(
            lease=max(0, promises.lease - 1),
            kept_ms=max(0, promises.kept_ms - 1),
            outlives_ms=max(0, promises.outlives_ms - 1),
        )
        if held.data is None:
            holds(promises.kept is None or not promises.kept_ms, "an outcome went before its time")
            holds(not promises.lease, "a record went before its owner's lease was over")
            holds(not promises.outlives_ms, "an accepted submission went before its execution")
            promises = Promises(promises.phases, promises.numbers)
        self._judge(held, promises)
        return held, promises

    def _call(self, held: Held, promises: Promises, call: Call) -> tuple[Held, Promises]:
        answer, after = self._answer(held, call)
        promises = getattr(self, f"_after_{call.name}")(held, after, promises, answer, call)
        self._judge(after, promises)
        return after, promises

    def _answer(self, held: Held, call: Call) -> tuple[Any, Held]:
        key = (held, call.name, repr(call.arguments))
        known = self.calls.get(key)
        if known is None:
            known = self.calls[key] = answer_of(self.law, held, call.name, call.arguments)
            if self.on_call is not None:
                self.on_call(held, call, *known)
        return known

    def _judge(self, held: Held, promises: Promises) -> None:
        """What must be true of what is held, whatever happened last."""
        claim = held.read()
        if claim is None:
            return
        record = claim.record
        holds(
            0 < held.left <= max(self.world.lease_ms + self.world.retention_ms, self.world.ttl_ms + 1),
            "a record lives on",
        )
        if promises.lease:
            holds(record.state is State.IN_FLIGHT, "an attempt has a lease, and does not read as in flight")
        if promises.owner is not None and not promises.lease:
            holds(record.lapsed, "a lease is over, and does not read so")
        if promises.kept is not None:
            by, state = promises.kept
            holds(record.state is state, "what was recorded reads otherwise")
            holds(by < 0 or record.token == self.world.token(by), "what was recorded reads as another attempt's")
            holds(held.left >= promises.kept_ms, "what was recorded lives for less long than was promised")

    def _after_claim(self, held: Held, after: Held, promises: Promises, answer: Claim, call: Call) -> Promises:
        attempt, payload = call.attempt, self.world.payloads[call.attempt]
        before = held.read()
        if promises.owner == attempt and promises.lease:
            holds(answer.won and after == held, "a claim that is sent again is answered otherwise")
            return promises
        if not answer.won:
            holds(before is not None, "nobody gets a free key")
            holds(after == held, "who lost has written")
            may = promises.payload == payload and not promises.lease
            free = {State.UNKNOWN} if promises.owner is not None else {promises.kept[1]} if promises.kept else set()
            holds(not (may and free & self.world.takeover), "what may be taken over is not")
            return promises._replace(phases=put(promises.phases, attempt, "ended"))
        holds(not promises.lease, "two attempts have a lease")
        holds(promises.kept is None or promises.kept[1] is not State.SUCCEEDED, "a success is executed again")
        if before is not None:
            holds(promises.payload == payload, "another payload has taken over")
        holds(answer.record.attempt == promises.begun + 1, "two attempts have one number")
        phases, number = put(promises.phases, attempt, "holds"), promises.begun + 1
        found = (State.ABSENT, 0) if before is None else (before.record.state, before.remaining_ms)
        numbers, lease = put(promises.numbers, attempt, number), self.world.lease_ms
        return Promises(
            phases, numbers, attempt, promises.owner, None, 0, number, lease, payload, found, promises.before
        )

    def _after_renew(self, held: Held, after: Held, promises: Promises, answer: bool, call: Call) -> Promises:
        holds(
            answer == (promises.owner == call.attempt), "a lease is renewed by who does not own it, or not by who does"
        )
        if not answer:
            holds(after == held, "who was refused has written")
            return promises
        return promises._replace(lease=self.world.lease_ms)

    def _after_complete(self, held: Held, after: Held, promises: Promises, answer: bool, call: Call) -> Promises:
        attempt, outcome = call.attempt, call.arguments["outcome"].state
        was_recorded = promises.kept is not None and promises.kept[0] == attempt
        may = held.data is None or promises.owner == attempt or was_recorded
        holds(answer == may, "an outcome is taken from who does not own the record, or not from who does")
        if not answer or was_recorded:
            holds(after == held, "an outcome is written over")
            return promises._replace(phases=put(promises.phases, attempt, "ended"))
        phases, number = put(promises.phases, attempt, "ended"), promises.numbers[attempt]
        kept, payload = (attempt, outcome), self.world.payloads[attempt]
        return Promises(phases, promises.numbers, None, None, kept, self.world.ttl_ms, number, 0, payload)

    def _after_release(self, held: Held, after: Held, promises: Promises, answer: bool, call: Call) -> Promises:
        holds(
            answer == (promises.owner == call.attempt),
            "a record is given back by who does not own it, or not by who does",
        )
        phases, numbers = put(promises.phases, call.attempt, "ended"), promises.numbers
        if not answer:
            holds(after == held, "who was refused has written")
            return promises._replace(phases=phases)
        state, left = promises.before
        claim = after.read()
        holds((state is State.ABSENT) == (claim is None), "a release gives back something else than was found")
        if claim is None:
            return Promises(phases, numbers)
        holds(claim.record.state is state, "a release gives back something else than was found")
        holds(claim.remaining_ms <= max(1, left), "what is given back lives for longer than it had left")
        holds(claim.record.attempt == promises.begun - 1, "an attempt that was given back is counted")
        given = Promises(phases, numbers, promises.former, begun=promises.begun - 1, payload=promises.payload)
        if promises.former is None:
            return given._replace(kept=(-1, state), kept_ms=0)
        found = (claim.record.found, claim.record.found_ms)
        holds(found == promises.before_former, "who gets a record back has found something else than before")
        return given._replace(before=found)

    def _after_resolve(self, held: Held, after: Held, promises: Promises, answer: Resolution, call: Call) -> Promises:
        request: ResolveRequest = call.arguments["request"]
        if answer is not Resolution.RESOLVED:
            holds(after == held, "who was refused has written")
            free = held.data is not None and not promises.lease and request.attempt in (0, promises.begun)
            unknown = promises.owner is not None or (promises.kept is not None and promises.kept[1] is State.UNKNOWN)
            holds(not (free and unknown), "an unknown outcome can't be resolved")
            return promises
        holds(not promises.lease or request.force, "an attempt with a lease was resolved without force")
        holds(request.attempt in (0, promises.begun), "another attempt than was seen was resolved")
        settled = promises.kept is not None and promises.kept[1] is not State.UNKNOWN
        holds(not settled, "what was settled was resolved")
        if request.state is None:
            holds(after.data is None, "a key that was set free is held")
            return Promises(promises.phases, promises.numbers)
        kept = (-1, request.state)
        return Promises(
            promises.phases, promises.numbers, None, None, kept, self.world.ttl_ms, promises.begun, 0, promises.payload
        )

    def _after_purge(self, held: Held, after: Held, promises: Promises, answer: Resolution, call: Call) -> Promises:
        if answer is not Resolution.RESOLVED:
            holds(after == held, "who was refused has written")
            return promises
        seen: Record = call.arguments["seen"]
        before = held.read()
        holds(before is not None, "there was nothing to purge")
        holds(seen.attempt == promises.begun, "another attempt than was seen was purged")
        holds(before is not None and before.record.token == seen.token, "another attempt than was seen was purged")
        holds(not promises.lease or call.arguments["force"], "an attempt with a lease was purged without force")
        return Promises(promises.phases, promises.numbers)

    def _after_outlast(self, held: Held, after: Held, promises: Promises, answer: int, call: Call) -> Promises:
        ttl_ms = call.arguments["ttl_ms"]
        claim = held.read()
        if answer <= 0:
            holds(claim is not None, "a submission that is gone is not written anew")
            holds(after == held, "who was refused has written")
            return promises
        holds(not promises.lease, "an attempt with a lease was written over")
        holds(claim is None or promises.payload == self.world.payloads[0], "another payload's record outlasts")
        holds(after.left >= max(ttl_ms, held.left), "a submission lives for less long than its execution")
        if claim is None:
            kept, payload = (0, State.SUCCEEDED), self.world.payloads[0]
            anew = Promises(promises.phases, promises.numbers, None, None, kept, ttl_ms, 1, 0, payload)
            return anew._replace(outlives_ms=ttl_ms)
        return promises._replace(kept_ms=max(ttl_ms, promises.kept_ms), outlives_ms=ttl_ms)

    def _after_prolong(self, held: Held, after: Held, promises: Promises, answer: bool, call: Call) -> Promises:
        if not answer:
            holds(after == held, "who was refused has written")
            return promises
        holds(promises.owner is None, "an attempt that has not ended is prolonged")
        holds(after.data == held.data and after.left > held.left, "a record lives for less long")
        return promises._replace(kept_ms=call.arguments["ttl_ms"])


def explore(world: World, law: Any, on_call: Callable[[Held, Call, Any, Held], None] | None = None) -> Search:
    """The finished search. Raises `Broken`."""
    search = Search(world, law, on_call)
    search.run()
    return search


def larger(world: World) -> World:
    """The same with another attempt, and leases that last for longer."""
    return replace(world, payloads=(*world.payloads, PAYLOAD), lease_ms=world.lease_ms + 1)
