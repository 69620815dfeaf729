"""Everything that can happen to a record in a small world, searched exhaustively: no order of claims, renewals, outcomes,
releases, lapses and operators' calls breaks a promise. The steps are the functions of `oncegate.cache.transitions` themselves,
and each call that the search meets is given to a real Redis, too. Without any one of the law's safeguards a promise is broken.

Rules of docs/contract.md: R1.1.
"""

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from oncegate.cache import transitions
from oncegate.cache.record import Claim, State
from testing.servers import RedisServer
from tests.cache.model import OTHER_PAYLOAD, PAYLOAD, Broken, Call, Held, World, explore, larger
from tests.cache.test_law import Scripts, unchanged

WORLDS = {
    "two attempts": World(),
    "another payload": World(payloads=(PAYLOAD, OTHER_PAYLOAD)),
    "an unknown outcome is refused": World(takeover=frozenset({State.FAILED})),
    "submissions": World(submissions=True),
    "submissions of another payload": World((PAYLOAD, OTHER_PAYLOAD), submissions=True),
    "an operator": World(has_operator=True),
}
"""The largest one last: a broken promise is looked for in one after the other."""
LARGE_WORLDS = {
    "three attempts": larger(World()),
    "three attempts, one of another payload": World((PAYLOAD, PAYLOAD, OTHER_PAYLOAD)),
    "three attempts, and unknown is refused": larger(WORLDS["an unknown outcome is refused"]),
    "an operator, and longer leases": replace(WORLDS["an operator"], lease_ms=3, retention_ms=3, ttl_ms=4),
    "three submissions": replace(WORLDS["submissions"], payloads=(PAYLOAD,) * 3),
}
EVERY_WORLD = [
    *(pytest.param(world, id=name, marks=pytest.mark.timeout(600)) for name, world in WORLDS.items()),
    *(
        pytest.param(world, id=name, marks=[pytest.mark.long, pytest.mark.timeout(3600)])
        for name, world in LARGE_WORLDS.items()
    ),
]


class Twin:
    """Gives each call of a search to the scripts of a Redis that holds the same.

    Raises `AssertionError` where they answer otherwise, or leave something else.
    """

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._key = server.key("model")
        self._in_redis = Scripts(server, self._key, unchanged)
        self.calls = 0

    def __call__(self, held: Held, call: Call, answer: Any, after: Held) -> None:
        if held.data != self._in_redis.data:  # most calls of a search leave what they meet
            self._server.command(*(("DEL", self._key) if held.data is None else ("SET", self._key, held.data)))
        self._in_redis.data, self._in_redis.left = held
        found = getattr(self._in_redis, call.name)(**call.arguments)
        expected = (answer.won, answer.record, answer.remaining_ms) if isinstance(answer, Claim) else answer
        assert found == expected, f"{call} of {held}"
        assert (self._in_redis.data, self._in_redis.left) == tuple(after), f"{call} of {held}"
        self.calls += 1


@pytest.mark.parametrize("world", EVERY_WORLD)
def test_no_order_of_events_breaks_a_promise_and_redis_answers_each_call_equally(
    redis_server: RedisServer, world: World
) -> None:
    twin = Twin(redis_server)
    search = explore(world, transitions, twin)
    assert twin.calls == len(search.calls)
    names = {name for _, name, _ in search.calls}
    assert names >= {"claim", "renew", "release", "complete"}
    assert ("resolve" in names, "outlast" in names) == (world.has_operator, world.submissions)
    assert search.states > 100


SAFEGUARDS = {
    "the token is compared": ("return record.token == token and (", "return ("),
    "whether it has ended is compared": ("and (record.state is State.IN_FLIGHT or record.lapsed)", ""),
    "the end of the lease is compared": (
        "    found = held.record\n",
        "    found = held.record\n    if found.state is State.IN_FLIGHT:\n"
        "        found = replace(found, state=State.UNKNOWN, lapsed=True)\n",
    ),
    "a takeover compares the payload": (
        "takes_over(found, request.takeover, request.fingerprint)",
        "found.state in request.takeover",
    ),
    "a takeover compares the state": (
        "not takes_over(found, request.takeover, request.fingerprint)",
        "found.state is State.IN_FLIGHT or found.fingerprint != request.fingerprint",
    ),
    "a takeover counts the attempt": (
        "taken = request.next_attempt(found, held.remaining_ms)",
        "taken = replace(request.next_attempt(found, held.remaining_ms), attempt=found.attempt)",
    ),
    "a takeover remembers whom it took over": (
        "taken = request.next_attempt(found, held.remaining_ms)",
        "taken = replace(request.next_attempt(found, held.remaining_ms), former=None)",
    ),
    "a claim that is sent again is known": ("found.state is State.IN_FLIGHT and found.token == request.token", "False"),
    "an outcome that is sent again is known": ("Move(held.record.token == outcome.token)", "Move(False)"),
    "an outcome of a lapsed record that is gone is taken": (
        "    if held is not None and not _is_owner(held.record, outcome.token):",
        "    if held is None:\n        return Move(False)\n    if not _is_owner(held.record, outcome.token):",
    ),
    "a release gives back no dead token": ("record.given_back()", "replace(record.given_back(), token=DEAD_TOKEN)"),
    "a release takes the attempt off": (
        "record.given_back()",
        "replace(record.given_back(), attempt=record.attempt)",
    ),
    "a release gives no more time than there was": ("max(1, record.found_ms)", "1 + record.found_ms"),
    "a release leaves its former what that had found": ("record.given_back()", "replace(record.given_back(), found_ms=9)"),
    "a release of a first attempt removes": (
        "if check(record.state, Event.RELEASE, record.found) is State.ABSENT:",
        "if False:",
    ),
    "a renewal is the record's own": ("lease_ms + held.record.retention_ms", "lease_ms"),
    "an operator needs force": ("if record.state is State.IN_FLIGHT and not request.force:", "if False:"),
    "an operator resolves the attempt that was seen": ("if request.attempt not in (0, record.attempt):", "if False:"),
    "an operator leaves what is settled": (
        "if not targets(record.state, Event.RESOLVE):",
        "if False:",
    ),
    "what was resolved is nobody's": ("        token=DEAD_TOKEN,\n", ""),
    "a purge is of the attempt that was seen": ("if (record.token, record.attempt) != (seen.token, seen.attempt):", "if False:"),
    "a purge needs force": ("if record.state is State.IN_FLIGHT and not force:", "if False:"),
    "a submission outlasts none of another payload": ("if record.fingerprint != submission.fingerprint:", "if False:"),
    "what is in flight is not prolonged": ("held.record.state is State.IN_FLIGHT or held.record.lapsed or held", "held"),
    "a lapsed attempt is not prolonged": ("held.record.lapsed or held.remaining_ms", "held.remaining_ms"),
    "no record lives for less long": ("or held.remaining_ms >= ttl_ms", ""),
    "a submission outlasts its execution": ("max(held.remaining_ms, ttl_ms), prolong(held, ttl_ms).ttl_ms", "ttl_ms, UNCHANGED"),
}  # fmt: skip
"""What the law compares or keeps, as its source says it, and the same without."""


@pytest.mark.interpreted  # each executes the source of the law, changed
@pytest.mark.parametrize("safeguard", SAFEGUARDS)
def test_without_this_safeguard_a_promise_is_broken(safeguard: str) -> None:
    text, without = SAFEGUARDS[safeguard]
    source = (Path(__file__).parents[2] / "cache" / "transitions.py").read_text()
    assert text in source
    law = ModuleType("unguarded")
    exec(source.replace(text, without), vars(law))
    with pytest.raises(Broken, match="-> ") as broken:
        explore_all(law)
    assert broken.value.history, "the counterexample is shown step by step"


def explore_all(law: Any) -> None:
    for world in WORLDS.values():
        explore(world, law)
