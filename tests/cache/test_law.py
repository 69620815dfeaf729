"""One law, executed twice: random histories are fed to the functions of `oncegate.cache.transitions` and to the Lua scripts on a
real Redis, and each answer, each stored byte and each time to live is compared. Both are then broken on purpose.

Time is given to the scripts, not waited for, so that both sides stand at the same millisecond: a lease that ends just now is told
from one that ended a millisecond ago.
"""

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oncegate.cache import transitions
from oncegate.cache.codec import decode, encode, encode_claim
from oncegate.cache.errors import IllegalTransition
from oncegate.cache.record import Claim, ClaimRequest, Record, State, StoredResponse, Trace
from oncegate.cache.redis import scripts
from oncegate.cache.redis.calls import takeover_codes
from testing.servers import RedisServer

TOKENS = st.sampled_from([b"a" * 16, b"b" * 16, b"c" * 16])
PRINTS = st.sampled_from([b"p" * 16, b"p" * 16, b"q" * 16])
DURATIONS = st.sampled_from([1, 5, 10])
TRACES = st.sampled_from([Trace(), Trace("gw"), Trace("gw", 7, None, "", "POST", "/orders", "0a-0b")])
RESPONSES = st.sampled_from([None, StoredResponse(201, ((b"x-\xe9", b"\xff"),), b"\x00body", 9)])
RESOLUTIONS: dict[int, str] = {1: "resolved", 0: "absent", -1: "in-flight", -2: "settled", -3: "other-attempt"}

_SEAL = re.compile(rb',?"[IFU]":"\w+"}\Z')
Text = Callable[[str], str]
Step = tuple[str, dict[str, Any]]


def step(name: str, **arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Step]:
    return st.tuples(st.just(name), st.fixed_dictionaries(arguments))


TAKEOVERS = st.sets(st.sampled_from([State.FAILED, State.UNKNOWN])).map(frozenset)
REQUESTS = st.builds(
    ClaimRequest, TOKENS, PRINTS, DURATIONS, st.sampled_from([0, 5, 20]), TAKEOVERS, TRACES, st.booleans()
)
OUTCOMES = st.builds(
    Record,
    st.sampled_from([State.SUCCEEDED, State.FAILED, State.UNKNOWN]),
    TOKENS,
    PRINTS,
    st.integers(1, 3),
    RESPONSES,
    trace=st.sampled_from([Trace(), Trace("gw", 0, 3, "note")]),
    submission=st.booleans(),
)
RESOLVE_REQUESTS = st.builds(
    transitions.ResolveRequest,
    st.sampled_from([State.SUCCEEDED, State.FAILED]),
    RESPONSES,
    DURATIONS,
    st.booleans(),
    st.integers(0, 2),
    st.sampled_from([Trace(), Trace("gw", 7, None, "an operator's")]),
    st.booleans(),
) | st.builds(transitions.ResolveRequest, st.none(), force=st.booleans(), attempt=st.integers(0, 2))
SEEN = st.builds(Record, st.just(State.SUCCEEDED), TOKENS, PRINTS, st.integers(1, 2))
SUBMISSIONS = st.builds(
    Record, st.just(State.SUCCEEDED), TOKENS, PRINTS, st.just(1), RESPONSES, submission=st.just(True)
)
HISTORIES = st.lists(
    st.one_of(
        step("claim", request=REQUESTS),
        step("renew", token=TOKENS, lease_ms=DURATIONS),
        step("complete", outcome=OUTCOMES, ttl_ms=DURATIONS),
        step("release", token=TOKENS),
        step("resolve", request=RESOLVE_REQUESTS),
        step("purge", seen=SEEN, force=st.booleans()),
        step("outlast", submission=SUBMISSIONS, ttl_ms=DURATIONS),
        step("prolong", ttl_ms=DURATIONS),
        step("time_passes", milliseconds=st.sampled_from([1, 4, 5, 6, 10, 20])),
    ),
    min_size=1,
    max_size=25,
)


class Functions:
    """A record as bytes with a time to live, moved by the functions."""

    def __init__(self, law: Any) -> None:
        self._law = law
        self.data: bytes | None = None
        self.left = 0

    def held(self) -> Claim | None:
        return None if self.data is None else Claim(False, decode(self.data, self.left, traced=True), self.left)

    def _carry_out(self, move: Any) -> Any:
        if move.ttl_ms == transitions.REMOVED:
            self.data, self.left = None, 0
        elif move.ttl_ms != transitions.UNCHANGED:
            self.data, self.left = self.data if move.record is None else encode(move.record), move.ttl_ms
        return move.answer

    def claim(self, request: ClaimRequest) -> Any:
        claim = self._carry_out(self._law.claim(self.held(), request))
        return claim.won, claim.record, claim.remaining_ms

    def renew(self, token: bytes, lease_ms: int) -> Any:
        return self._carry_out(self._law.renew(self.held(), token, lease_ms))

    def complete(self, outcome: Record, ttl_ms: int) -> Any:
        return self._carry_out(self._law.complete(self.held(), outcome, ttl_ms))

    def release(self, token: bytes) -> Any:
        """Without its seal: a script can't compute one."""
        move = self._law.release(self.held(), token)
        if self._carry_out(move) and self.data is not None:
            self.data = _SEAL.sub(b"}", self.data).removesuffix(b"{}")
        return move.answer

    def resolve(self, request: transitions.ResolveRequest) -> Any:
        return self._carry_out(self._law.resolve(self.held(), request))

    def purge(self, seen: Record, force: bool) -> Any:
        return self._carry_out(self._law.purge(self.held(), seen, force=force))

    def outlast(self, submission: Record, ttl_ms: int) -> Any:
        return self._carry_out(self._law.outlast(self.held(), submission, ttl_ms))

    def prolong(self, ttl_ms: int) -> Any:
        return self._carry_out(self._law.prolong(self.held(), ttl_ms))

    def time_passes(self, milliseconds: int) -> None:
        self.left = max(0, self.left - milliseconds)
        self.data = self.data if self.left else None


GIVEN_TIME = """
local server, left = redis, tonumber(ARGV[#ARGV])
local redis = {call = function(name, key, first, second, third)
  if name == 'PTTL' then return left end
  local reply
  if name == 'SET' then
    reply, left = server.call(name, key, first, second, third), second == 'PX' and tonumber(third) or -1
    server.call('PERSIST', key)
  elseif name == 'PEXPIRE' then
    local moves = server.call('EXISTS', key) == 1 and (second ~= 'GT' or tonumber(first) > left)
    reply, left = moves and 1 or 0, moves and tonumber(first) or left
  else
    reply = name == 'GETRANGE' and server.call(name, key, first, second) or server.call(name, key)
    if name == 'DEL' then left = 0 end
  end
  return reply
end}
local reply = (function()
%s
end)()
return {reply, server.call('GET', KEYS[1]), left}
"""
"""A script whose key has what the test says left to live, and lives on until the test lets time pass."""


class Scripts:
    """A record in Redis, moved by the scripts."""

    def __init__(self, server: RedisServer, key: str, edit: Text) -> None:
        self._server = server
        self._key = key
        self._edit = edit
        self.data: bytes | None = None
        self.left = 0

    def _run(self, script: scripts.Script, *arguments: bytes | int) -> Any:
        source = GIVEN_TIME % self._edit(script.source.decode()).removeprefix("#!lua flags=allow-oom\n")
        reply, self.data, self.left = self._server.command("EVAL", source, 1, self._key, *arguments, self.left)
        return reply

    def claim(self, request: ClaimRequest) -> Any:
        ttl_ms = request.lease_ms + request.retention_ms
        reply = self._run(scripts.CLAIM, encode_claim(request), ttl_ms, takeover_codes(request.takeover))
        if reply == 1:
            return True, request.first_attempt(), ttl_ms
        won, data, remaining_ms = reply
        return won == 1, decode(data, remaining_ms), remaining_ms

    def renew(self, token: bytes, lease_ms: int) -> Any:
        return self._run(scripts.RENEW, token, lease_ms) == 1

    def complete(self, outcome: Record, ttl_ms: int) -> Any:
        return self._run(scripts.COMPLETE, encode(outcome), ttl_ms) == 1

    def release(self, token: bytes) -> Any:
        return self._run(scripts.RELEASE, token) == 1

    def resolve(self, request: transitions.ResolveRequest) -> Any:
        outcome = b""
        if request.state is not None:
            if self.data is None:
                return "absent"
            outcome = encode(transitions.resolved_record(decode(self.data, self.left), request.state, request))
        return RESOLUTIONS[self._run(scripts.RESOLVE, outcome, request.ttl_ms, int(request.force), request.attempt)]

    def purge(self, seen: Record, force: bool) -> Any:
        return RESOLUTIONS[self._run(scripts.PURGE, seen.token + seen.attempt.to_bytes(4, "big"), int(force))]

    def outlast(self, submission: Record, ttl_ms: int) -> Any:
        return self._run(scripts.OUTLAST, encode(submission), ttl_ms)

    def prolong(self, ttl_ms: int) -> Any:
        return self._run(scripts.PROLONG, ttl_ms) == 1

    def time_passes(self, milliseconds: int) -> None:
        self.left = max(0, self.left - milliseconds)
        if not self.left:
            self._server.command("DEL", self._key)
            self.data = None


A, B, C = b"a" * 16, b"b" * 16, b"c" * 16
PRINT, OTHER = b"p" * 16, b"q" * 16
RETRY = frozenset({State.FAILED, State.UNKNOWN})


def claims(token: bytes, print_: bytes = PRINT, submission: bool = False) -> Step:
    return "claim", {"request": ClaimRequest(token, print_, 5, 20, RETRY, submission=submission)}


def completes(token: bytes, state: State) -> Step:
    return "complete", {"outcome": Record(state, token, PRINT, 1), "ttl_ms": 10}


def passes(milliseconds: int) -> Step:
    return "time_passes", {"milliseconds": milliseconds}


def resolves(force: bool = False) -> Step:
    return "resolve", {"request": transitions.ResolveRequest(State.FAILED, None, 10, force)}


def purges(token: bytes, force: bool = False) -> Step:
    return "purge", {"seen": Record(State.SUCCEEDED, token, PRINT, 1), "force": force}


def outlasts(print_: bytes = PRINT, ttl_ms: int = 20) -> Step:
    return "outlast", {"submission": Record(State.SUCCEEDED, A, print_, 1, submission=True), "ttl_ms": ttl_ms}


def prolongs(milliseconds: int) -> Step:
    return "prolong", {"ttl_ms": milliseconds}


def releases(token: bytes) -> Step:
    return "release", {"token": token}


RENEWS, RELEASES = ("renew", {"token": A, "lease_ms": 5}), releases(B)
WALKS: list[list[Step]] = [
    [claims(A), passes(5), claims(B), RELEASES, claims(A)],
    [claims(A), passes(5), claims(B), RELEASES, RENEWS, completes(A, State.SUCCEEDED)],
    [claims(A), completes(A, State.FAILED), claims(C), passes(5), claims(B), RELEASES, releases(C), claims(A)],
    [claims(A), passes(5), claims(C), passes(5), claims(B), RELEASES, releases(C), completes(A, State.SUCCEEDED)],
    [claims(A), passes(4), claims(B), resolves(), resolves(True)],
    [claims(A), completes(A, State.FAILED), claims(B, OTHER), claims(B), RELEASES, passes(9), passes(1)],
    [claims(A, submission=True), passes(6), claims(B, submission=True), RELEASES, claims(A)],
    [claims(A), RENEWS, claims(A), passes(6), RENEWS, claims(A), completes(A, State.SUCCEEDED)],
    [claims(A), passes(6), resolves(), completes(A, State.SUCCEEDED), claims(B)],
    [claims(A), completes(A, State.SUCCEEDED), completes(A, State.FAILED), completes(B, State.FAILED), RELEASES],
    [claims(A), RELEASES, completes(B, State.FAILED), RENEWS],
    [claims(A), purges(B, True), purges(A), passes(5), purges(A), purges(A)],
    [claims(A), purges(A, True), claims(A), completes(A, State.FAILED), purges(A)],
    [outlasts(), outlasts(OTHER), outlasts(ttl_ms=10), passes(15), outlasts(ttl_ms=10)],
    [prolongs(10), claims(A), outlasts(), prolongs(30), passes(6), outlasts(), prolongs(30)],
    [claims(A), completes(A, State.SUCCEEDED), outlasts(), prolongs(9), prolongs(10), prolongs(11)],
]
"""Where each of the faults below shows: what chance finds is found in most runs, these in every one."""


def unchanged(text: str) -> str:
    return text


def compare(server: RedisServer, examples: int, law: Any = transitions, edit: Text = unchanged) -> None:
    """Feed random histories to both. Raises what the first difference raises."""
    key = server.key("law")

    def both(history: list[Step]) -> None:
        server.command("DEL", key)
        functions, in_redis = Functions(law), Scripts(server, key, edit)
        for name, arguments in history:
            assert getattr(functions, name)(**arguments) == getattr(in_redis, name)(**arguments)
            assert (functions.data, functions.left) == (in_redis.data, in_redis.left)

    for walk in WALKS:
        both(walk)
    if examples:
        settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))(
            given(HISTORIES)(both)
        )()


def test_the_functions_and_the_scripts_give_the_same_answers_and_the_same_bytes(redis_server: RedisServer) -> None:
    compare(redis_server, 500)


FAULTY_SCRIPTS = {
    "a lease lasts a millisecond longer": ("if pttl > struct.unpack", "if pttl >= struct.unpack"),
    "attempts are not counted": ("struct.unpack('>I4', record, 35) + 1", "struct.unpack('>I4', record, 35)"),
    "another payload takes over": ("or record:sub(19, 34) ~= fresh:sub(19, 34)", ""),
    "an outcome is written over": ("if held:sub(2, 2) == 'I' then\n  redis.call('SET'", "if true then\n  redis.call('SET'"),
    "a lease is renewed without its retention": ("ARGV[2] + struct.unpack('>I8', held, 39)", "ARGV[2]"),
    "anybody releases": ("or held:sub(3, 18) ~= ARGV[1] then\n  return 0\nend\nlocal found", "then return 0 end\nlocal found"),
    "a released submission is a submission no more": ("restored .. '{\"a\":1}'", "restored"),
    "who took over in between is given a dead owner's place": ("before = 'U'", "before = 'A'"),
    "a lapsed record is given back to nobody": ("held:sub(56, 71)", "string.rep('\\0', 16)"),
    "what was found lives for longer than it had left": ("(struct.unpack('>I8', held, 48))", "struct.unpack('>I8', held, 48)"),
    "nobody needs force": ("and ARGV[3] ~= '1' then", "and false then"),
    "another attempt is purged": (" .. held:sub(35, 38) ~= ARGV[1] then", " == '' then"),
    "a lapsed attempt is purged by force only": ("redis.call('PTTL', KEYS[1]) > struct", "0 <= struct"),
    "a submission lives for less long": ("left < tonumber(ARGV[2])", "left > tonumber(ARGV[2])"),
    "what was executed at once outlasts": ("or not record:sub(43, 80):find('{\"a\":1', 1, true)", ""),
    "a record lives for less long": ("ARGV[1], 'GT')", "ARGV[1])"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTY_SCRIPTS)
def test_a_fault_in_a_script_is_caught(redis_server: RedisServer, fault: str) -> None:
    right, wrong = FAULTY_SCRIPTS[fault]
    assert sum(right in script.source.decode() for script in scripts.SCRIPTS)
    with pytest.raises(AssertionError):
        compare(redis_server, 0, edit=lambda text: text.replace(right, wrong))


FAULTY_FUNCTIONS = {
    "a lapsed attempt can't be renewed": ("_row(State.UNKNOWN, Event.RENEW", "_row(State.FAILED, Event.RENEW"),
    "a claim that is sent again is lost": ("return Move(Claim(True, found,", "return Move(Claim(False, found,"),
    "another payload takes over": (
        "takes_over(found, request.takeover, request.fingerprint)",
        "found.state in request.takeover",
    ),
    "an outcome is written over": ("and (record.state is State.IN_FLIGHT or record.lapsed)", ""),
    "a lost answer is not given again": ("Move(held.record.token == outcome.token)", "Move(False)"),
    "a release leaves the attempt counted": (
        "record.given_back())",
        "replace(record.given_back(), attempt=record.attempt))",
    ),
    "a release leaves the first owner without its record": (
        "record.given_back())",
        "replace(record, former=None).given_back())",
    ),
    "what was found lives for ever anew": ("max(1, record.found_ms)", "1000"),
    "a resolved record keeps its old time": (
        "Move(Resolution.RESOLVED, request.ttl_ms",
        "Move(Resolution.RESOLVED, held.remaining_ms",
    ),
    "another attempt is purged": ("if (record.token, record.attempt) != (seen.token, seen.attempt)", "if False"),
    "an attempt in flight is prolonged": ("held.record.state is State.IN_FLIGHT or held.record.lapsed or held", "held"),
    "another payload outlasts": ("if record.fingerprint != submission.fingerprint", "if False"),
}


@pytest.mark.parametrize("fault", FAULTY_FUNCTIONS)
def test_a_fault_in_a_function_is_caught(redis_server: RedisServer, fault: str) -> None:
    right, wrong = FAULTY_FUNCTIONS[fault]
    source = (Path(__file__).parents[2] / "cache" / "transitions.py").read_text()
    assert right in source
    law = ModuleType("faulty")
    exec(source.replace(right, wrong), vars(law))
    with pytest.raises((AssertionError, IllegalTransition)):
        compare(redis_server, 0, law)
