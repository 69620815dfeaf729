"""The exchange decides each step of a request with a key by what it is fed, and waits for nothing.

Rules of docs/contract.md: R3.13, R3.15.
"""

import ast
import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from oncegate import IdempotencyMiddleware, MemoryCache
from oncegate.cache.errors import CacheUnavailable, RecordUnreadable
from oncegate.cache.record import Claim, State
from oncegate.middleware.admission.admission import Verdict
from oncegate.middleware.admission.attempt import Attempt
from oncegate.middleware.admission.lease import LeaseLost, Unconfirmed
from oncegate.middleware.http import exchange, keyed_request
from oncegate.middleware.http.asgi import SCOPE_EXTENSION, AttemptView
from oncegate.middleware.http.exchange import Exchange, Step
from oncegate.middleware.outcome.errors import NotAccepted, NotProcessed, OutcomeUnknown
from oncegate.middleware.outcome.problems import Answer

HEADERS = [(b"content-type", b"a/b"), (b"content-length", b"2")]


class Requests:
    """Exchanges of one app's requests, driven by hand."""

    def __init__(self) -> None:
        self.cache = MemoryCache()
        self.door = IdempotencyMiddleware(_unused, cache=self.cache).door

    def admitted(self, key: bytes = b"k", body: bytes = b"{}", *fields: tuple[bytes, bytes], **scope: Any) -> Exchange:
        """One whose request is whole."""
        lines = [(b"idempotency-key", key), *fields]
        given = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": lines, **scope}
        policy = self.door.policies.match("POST", "/")
        assert policy is not None
        made = Exchange(self.door, policy, given)
        look_up_key = made.identify()
        assert isinstance(look_up_key, str)
        made.admit(look_up_key, body)
        return made

    def claimed(self, made: Exchange) -> Step:
        """The next step by what the cache answers."""
        replies: list[Claim | Exception] = []
        self.door.admissions.enter(made.admission)
        self.door.admissions.claim(made.admission, asyncio.get_running_loop(), replies.append)
        return made.on_claimed(*replies)

    def begun(self, *given: Any) -> Exchange:
        """One whose attempt runs."""
        made = self.admitted(*given)
        attempt = self.claimed(made)
        assert isinstance(attempt, Attempt)
        made.begin(attempt, asyncio.get_running_loop(), lambda: None)
        return made

    async def state(self, made: Exchange) -> State | None:
        found = await self.cache.peek(made.admission.address.key)
        return None if found is None else found.record.state

    @property
    def slots(self) -> int:
        return self.door.admissions.in_flight.slots.taken


async def _unused(*_: Any) -> None:
    raise AssertionError("nobody drives it")


def problem(step: Step) -> str:
    assert isinstance(step, Answer)
    code: str = json.loads(step.body)["code"]
    return code


async def test_a_first_request_runs_is_recorded_and_answered_and_a_retry_is_replayed() -> None:
    requests = Requests()
    made, recorded = requests.begun(), list[str]()
    assert (await requests.state(made), requests.slots) == (State.IN_FLIGHT, 1)
    made.on_response(201, HEADERS, b"{}", lambda: recorded.append("then"))
    assert (recorded, requests.slots, await requests.state(made)) == (["then"], 0, State.SUCCEEDED)
    assert (
        dict(made.executed(made.attempt, 201, HEADERS)[0])[b"cache-status"] == b"oncegate; fwd=miss; stored; ttl=86400"
    )
    again = requests.claimed(requests.admitted())
    assert isinstance(again, Answer)
    assert (again.status, again.body, dict(again.headers)[b"idempotent-replayed"]) == (201, b"{}", b"true")


async def test_what_is_in_the_way_is_answered_or_waited_for() -> None:
    requests = Requests()
    first = requests.begun()
    assert problem(requests.claimed(requests.admitted())) == "in-flight"
    assert problem(requests.claimed(requests.admitted(b"k", b"[]"))) == "key-reused"
    waiting = requests.admitted(b"k", b"{}", (b"prefer", b"wait=5"))
    step = requests.claimed(waiting)
    assert isinstance(step, Verdict)
    waiting.waits()
    assert waiting.on_waited(None) is None  # claimed once more
    assert problem(waiting.on_waited(step)) == "in-flight"
    first.on_response(201, HEADERS, b"{}", lambda: None)
    replay = requests.claimed(waiting)
    assert isinstance(replay, Answer)
    assert dict(replay.headers)[b"preference-applied"] == b"wait=5"


async def test_it_steps_aside_for_the_attempt_around_it() -> None:
    requests = Requests()
    outer = requests.begun()
    view = AttemptView(1, outer.record, None, outer.attempt.claim.token)
    inner = requests.admitted(b"k", b"{}", (b"prefer", b"wait=5"), extensions={SCOPE_EXTENSION: view})
    assert inner.admission.until == 0  # it would wait for itself
    assert requests.claimed(inner) is view


@pytest.mark.parametrize(
    ("error", "code"), [(CacheUnavailable("away"), "cache-unavailable"), (RecordUnreadable("odd"), "record-unreadable")]
)
async def test_errors_of_the_cache_are_answered(error: Exception, code: str) -> None:
    requests = Requests()
    made = requests.admitted()
    assert problem(made.on_claimed(error)) == code


async def test_an_error_without_an_answer_is_given_to_the_server() -> None:
    requests = Requests()
    error = LookupError()
    assert requests.admitted().on_claimed(error) is error


FAILURES: list[tuple[BaseException, State | None, str | None]] = [
    (NotProcessed("refused"), None, "upstream-unreachable"),
    (Unconfirmed("away"), None, "cache-unavailable"),
    (NotAccepted("overloaded", "full"), None, "overloaded"),
    (OutcomeUnknown("broke"), State.UNKNOWN, "upstream-failed"),
    (asyncio.CancelledError(), State.UNKNOWN, "upstream-failed"),
    (LookupError(), State.FAILED, None),
    (SystemExit(), State.UNKNOWN, None),
]


@pytest.mark.parametrize(("error", "state", "code"), FAILURES, ids=lambda value: type(value).__name__)
async def test_what_comes_in_place_of_a_response_settles_the_record(
    error: BaseException, state: State | None, code: str | None
) -> None:
    requests = Requests()
    made = requests.begun()
    made.on_failure(error)
    await made.attempt.ended()
    answer = made.failed()
    assert (await requests.state(made), requests.slots) == (state, 0)
    assert made.raised is (error if code is None else None)
    assert (None if answer is None else problem(answer)) == code


async def test_a_request_that_is_overtaken_again_and_again_is_refused() -> None:
    requests = Requests()
    made = requests.begun()
    steps = []
    for _ in range(3):
        made.on_failure(LeaseLost("taken over"))
        assert (made.failed(), type(made.raised)) == (None, LeaseLost)
        steps.append(made.on_lease_lost())
    assert steps[:2] == [None, None]
    assert problem(steps[2]) == "overloaded"


@pytest.mark.parametrize("module", [exchange, keyed_request], ids=lambda module: module.__name__.rpartition(".")[2])
def test_it_awaits_nothing(module: Any) -> None:
    source = Path(module.__file__).with_name(module.__name__.rpartition(".")[2] + ".py").read_text("utf-8")
    waits = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)
    assert [node for node in ast.walk(ast.parse(source)) if isinstance(node, waits)] == []
