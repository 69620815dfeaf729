"""`Prefer: respond-async`: the submission of a command, whoever takes it.

Rules of docs/contract.md: R2.20, R3.10, R8.1, R8.2, R8.3, R8.4, R8.5, R8.6, R8.7.
"""

from typing import Any

import pytest

from oncegate.cache.errors import CacheUnavailable
from oncegate.cache.memory.store import MemoryCache
from oncegate.cache.record import ClaimRequest, State
from oncegate.middleware.http.asgi import SUBMISSION_EXTENSION
from oncegate.middleware.http.middleware import IdempotencyMiddleware
from oncegate.middleware.outcome.errors import NotAccepted
from oncegate.middleware.rules.keys.key import fingerprint, record_id
from oncegate.middleware.rules.settings import Route
from tests.middleware.conftest import MakeDoor
from tests.middleware.door import Answered, Answering, Door, waits

ASYNC = [("prefer", "respond-async")]
ACCEPTED = b'{"status":"accepted"}'
LOCATION = (b"location", b"/_oncegate/commands/x")


def _route(mode: str = "either", **more: Any) -> Route:
    return Route.model_validate({"path": "/payments", "mode": mode} | more)


class Two:
    """A door with an app behind it and one that takes submissions."""

    def __init__(
        self, door: MakeDoor, route: Route, *answers: int | Exception, held: bool = False, **options: Any
    ) -> None:
        self.app = Answering(201)
        self.submit = Answering(*(answers or (202,)), body=ACCEPTED, headers=[LOCATION], held=held)
        self.door: Door = door(self.app, submit=self.submit, routes=[route], **options)

    @property
    def calls(self) -> tuple[int, int]:
        """Of the app, and of what takes submissions."""
        return self.app.calls, self.submit.calls


async def test_respond_async_is_accepted_at_once_and_a_retry_gets_the_same_202(door: MakeDoor) -> None:
    two = Two(door, _route())
    first = await two.door.send(headers=ASYNC)
    retry = await two.door.send(headers=ASYNC)
    for answer in (first, retry):
        assert (answer.status, answer.body, answer.value("location")) == (202, ACCEPTED, LOCATION[1].decode())
        assert answer.value("preference-applied") == "respond-async"
    assert (first.replayed, retry.replayed) == (False, True)
    assert first.value("cache-status") == "oncegate; fwd=miss; stored; ttl=86400"
    assert two.calls == (0, 1)
    record = await two.door.record()
    assert record.submission
    assert record.state is State.SUCCEEDED


async def test_respond_async_tells_what_takes_it_all_that_travels_along(door: MakeDoor) -> None:
    two = Two(door, _route(stream="payments"))
    await two.door.send(b"[1]", key='"k 1"', headers=ASYNC)
    scope = two.submit.scopes[0]
    submission = scope["extensions"][SUBMISSION_EXTENSION]
    assert (submission.key, submission.policy.route, submission.policy.stream) == ("k 1", "/payments", "payments")
    assert submission.claim.fingerprint == fingerprint("POST", b"/payments", b"", b"[1]", as_json=False)
    assert scope["extensions"]["oncegate.attempt"].record == record_id(two.door.look_up_key("k 1"))
    assert two.submit.bodies == [b"[1]"]


async def test_respond_async_not_asked_for_on_either_is_executed(door: MakeDoor) -> None:
    two = Two(door, _route())
    answer = await two.door.send(headers=[("prefer", "wait=3")])
    assert (answer.status, answer.value("preference-applied")) == (201, None)
    assert SUBMISSION_EXTENSION not in two.app.scopes[0]["extensions"]
    assert two.calls == (1, 0)


async def test_respond_async_is_what_every_request_gets_on_an_asynchronous_route(door: MakeDoor) -> None:
    two = Two(door, _route("async"))
    answer = await two.door.send()
    assert (answer.status, answer.value("preference-applied")) == (202, None), "not asked for, so not told of"
    assert (await two.door.send(headers=ASYNC)).value("preference-applied") == "respond-async"
    assert two.calls == (0, 1)


async def test_respond_async_is_ignored_on_a_synchronous_route(door: MakeDoor) -> None:
    two = Two(door, _route("sync"))
    answer = await two.door.send(headers=ASYNC)
    assert (answer.status, answer.value("preference-applied")) == (201, None)
    other = await two.door.send(path="/others", key="k-2", headers=ASYNC)  # and where no route matches
    assert (other.status, other.value("preference-applied")) == (201, None)
    assert two.calls == (2, 0)


async def test_respond_async_is_ignored_without_a_key(door: MakeDoor) -> None:
    two = Two(door, _route())
    answer = await two.door.send(key=None, headers=ASYNC)
    assert (answer.status, answer.value("preference-applied")) == (201, None)
    assert answer.value("cache-status") == "oncegate; fwd=bypass"
    assert two.calls == (1, 0)


async def test_respond_async_goes_with_a_key_that_the_gateway_made(door: MakeDoor) -> None:
    two = Two(door, _route("async", on_missing_key="generate"))
    answer = await two.door.send(key=None)
    assert answer.status == 202
    made = two.submit.scopes[0]["extensions"][SUBMISSION_EXTENSION].key
    assert answer.value("idempotency-key") == f'"{made}"'


@pytest.mark.parametrize(
    ("lines", "preferred"),
    [
        (["respond-async"], True),
        (["Respond-ASYNC"], True),
        (["wait=10, respond-async"], True),
        (["respond-async,wait=10"], True),
        (["wait=10", "return=minimal", "respond-async"], True),
        (["respond-async; foo=bar"], True),
        (['respond-async ; foo="a, b", return=minimal'], True),
        (['respond-async=""'], True),
        (['foo="x, respond-async"'], False),
        (['foo="\\", respond-async"'], False),
        (["respond-asynchronously"], False),
        (["respond-async=no"], False),
        (["foo; respond-async"], False),
        ([""], False),
    ],
)
async def test_respond_async_is_found_as_rfc_7240_has_it(door: MakeDoor, lines: list[str], preferred: bool) -> None:
    two = Two(door, _route())
    answer = await two.door.send(headers=[("prefer", line) for line in lines])
    assert answer.status == (202 if preferred else 201)
    assert answer.value("preference-applied") == ("respond-async" if preferred else None)


async def test_respond_async_and_wait_are_told_of_in_one_field(door: MakeDoor) -> None:
    two = Two(door, _route(), held=True, watch=(answered := Answered()))
    first = two.door.begin(headers=ASYNC)
    await two.submit.arrivals()
    second = await waits(lambda: two.door.begin(headers=[("prefer", "wait=20"), *ASYNC]), answered)
    two.submit.release()
    await first.answered()
    await second.answered()
    assert (second.status, second.body, second.replayed) == (202, ACCEPTED, True)
    assert second.value("preference-applied") == "respond-async, wait=20"


async def test_respond_async_that_was_not_applied_is_not_told_of(door: MakeDoor) -> None:
    two = Two(door, _route(), held=True)
    first = two.door.begin(headers=ASYNC)
    await two.submit.arrivals()
    concurrent = await two.door.send(headers=ASYNC)
    assert (concurrent.code, concurrent.value("preference-applied")) == ("in-flight", None)
    two.submit.release()
    await first.answered()
    mismatch = await two.door.send(b"other", headers=ASYNC)
    assert (mismatch.code, mismatch.value("preference-applied")) == ("key-reused", None)


# -- one key, both ways


async def test_respond_async_after_a_synchronous_execution_gets_its_result(door: MakeDoor) -> None:
    two = Two(door, _route())
    await two.door.send()
    answer = await two.door.send(headers=ASYNC)
    assert (answer.status, answer.replayed, answer.value("preference-applied")) == (201, True, None)
    assert two.calls == (1, 0)


async def test_respond_async_first_then_a_synchronous_request_gets_the_202(door: MakeDoor) -> None:
    two = Two(door, _route())
    await two.door.send(headers=ASYNC)
    answer = await two.door.send()
    assert (answer.status, answer.replayed, answer.value("preference-applied")) == (202, True, None)
    assert two.calls == (0, 1)


# -- what is kept


@pytest.mark.parametrize("kind", ["failure", "release", "unknown"])
async def test_respond_async_202_is_a_success_whatever_the_route_makes_of_the_upstreams(
    door: MakeDoor, kind: str
) -> None:
    two = Two(door, _route("async", status={202: kind}, drop_headers=["location"], max_result=0))
    first = await two.door.send()
    assert first.value("cache-status") == "oncegate; fwd=miss; stored; ttl=86400"
    retry = await two.door.send()
    assert (retry.status, retry.body, retry.value("location")) == (202, ACCEPTED, LOCATION[1].decode())
    assert two.calls == (0, 1)


@pytest.mark.parametrize("slug", ["overloaded", "cache-unavailable"])
async def test_respond_async_that_was_not_accepted_leaves_nothing_behind(door: MakeDoor, slug: str) -> None:
    two = Two(door, _route("async"), NotAccepted(slug, "No room."), 202)
    refused = await two.door.send(headers=ASYNC)
    assert (refused.status, refused.code, refused.problem["retryable"]) == (503, slug, True)
    assert refused.value("retry-after") == "1"
    assert refused.value("preference-applied") is None
    assert refused.problem["detail"] == "No room."
    assert await two.door.state() is State.ABSENT
    assert (await two.door.send()).status == 202


@pytest.mark.parametrize("mode", ["async", "either"])
async def test_respond_async_that_may_have_left_a_copy_is_submitted_again_and_never_executed_beside_it(
    door: MakeDoor, mode: str
) -> None:
    two = Two(door, _route(mode), NotAccepted("cache-unavailable", "Silence.", copied=True), 202)
    refused = await two.door.send(headers=ASYNC)
    assert (refused.status, refused.code, refused.problem["retryable"]) == (503, "cache-unavailable", True)
    if mode == "either":
        assert (await two.door.send()).code == "outcome-unknown", "to be executed"
    else:
        assert await two.door.state() is State.ABSENT
    retry = await two.door.send(headers=ASYNC)
    assert (retry.status, retry.replayed) == (202, False)
    assert two.calls == (0, 2)


async def test_respond_async_never_fails_open(namespace: str) -> None:
    class Away(MemoryCache):
        async def claim(self, *args: Any, **kwargs: Any) -> Any:
            raise CacheUnavailable("away")

    app, submit = Answering(201), Answering(202)
    there = Door(app, Away(), namespace, submit=submit, routes=[_route()], on_cache_down="fail_open")
    assert (await there.send(headers=ASYNC)).code == "cache-unavailable"
    assert (app.calls, submit.calls) == (0, 0)
    assert (await there.send()).status == 201, "what is executed at once fails open as before"


async def test_respond_async_is_taken_over_from_a_dead_gateway_whatever_on_unknown_says(door: MakeDoor) -> None:
    two = Two(door, _route(), lease=0.3, on_unknown="refuse")
    # As a gateway leaves it that died between its claim and its record.
    key = two.door.look_up_key()
    print_ = fingerprint("POST", b"/payments", b"", b'{"amount": 1}', as_json=False)
    await two.door.cache.claim(
        key, ClaimRequest(token=b"t" * 16, fingerprint=print_, lease_ms=1, retention_ms=60_000, submission=True)
    )
    await two.door.becomes(State.UNKNOWN)
    assert (await two.door.send()).code == "outcome-unknown", "a synchronous request: a copy may wait in the stream"
    answer = await two.door.send(headers=ASYNC)
    assert (answer.status, answer.replayed) == (202, False)
    assert two.calls == (0, 1)


async def test_respond_async_does_not_take_over_an_execution(door: MakeDoor) -> None:
    two = Two(door, _route(), on_unknown="refuse")
    print_ = fingerprint("POST", b"/payments", b"", b'{"amount": 1}', as_json=False)
    await two.door.cache.claim(
        two.door.look_up_key(), ClaimRequest(token=b"t" * 16, fingerprint=print_, lease_ms=1, retention_ms=60_000)
    )
    await two.door.becomes(State.UNKNOWN)
    assert (await two.door.send(headers=ASYNC)).code == "outcome-unknown"
    assert two.calls == (0, 0)


def test_respond_async_needs_something_that_takes_submissions() -> None:
    with pytest.raises(ValueError, match="submit"):
        IdempotencyMiddleware(Answering(), cache=MemoryCache(), routes=[_route()])


@pytest.mark.parametrize("name", ["", "a:b", "a b", "{x}", "x" * 65, "ä"])
def test_respond_async_streams_and_consumers_have_names_that_fit_into_a_key(name: str) -> None:
    for field in ("stream", "consumer"):
        with pytest.raises(ValueError, match=field):
            _route(**{field: name})
