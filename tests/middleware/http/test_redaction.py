"""What an app's own function leaves of a response, for the record and for who asks later.

Rules of docs/contract.md: R3.22, R3.23, R3.24.
"""

import asyncio
import json
import logging
from typing import Any

import pytest

from oncegate import IdempotencyMiddleware, MemoryCache
from oncegate.cache.record import State, StoredResponse
from testing.asgi_client import Client
from tests.middleware.conftest import MakeDoor
from tests.middleware.door import Answering

CARD = b'{"id": 1, "card": "4242 4242 4242 4242"}'
HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(CARD)), (b"x-card", b"4242")]


def answering(*answers: int | BaseException) -> Answering:
    return Answering(*answers, body=CARD, headers=HEADERS)


def without_card(scope: dict[str, Any], response: StoredResponse) -> StoredResponse:
    assert response.body is not None
    kept = [line for line in response.headers if line[0] != b"x-card"]
    return response._replace(headers=tuple(kept), body=response.body.replace(b"4242 4242 4242 4242", b"4242"))


async def test_the_first_client_gets_the_original_and_a_retry_what_was_kept(door: MakeDoor) -> None:
    there = door(app := answering(201), redact=without_card)
    first, retry = await there.send(), await there.send()
    assert (first.body, first.value("x-card"), first.value("content-length")) == (CARD, "4242", str(len(CARD)))
    assert (retry.status, json.loads(retry.body), retry.replayed) == (201, {"id": 1, "card": "4242"}, True)
    assert (retry.value("x-card"), retry.value("content-length")) == (None, str(len(retry.body)))
    assert (first.value("cache-status"), app.calls) == ("oncegate; fwd=miss; stored; ttl=86400", 1)
    record = await there.record()
    assert record.response is not None
    assert b"4242 4242" not in (record.response.body or b"")


async def test_a_waiter_and_an_error_that_carries_the_result_get_what_was_kept(door: MakeDoor) -> None:
    there = door(app := Answering(201, body=CARD, headers=HEADERS, held=True), redact=without_card)
    async with there.in_flight(app) as first:
        waiter = there.begin(headers=[("prefer", "wait=20")])
    assert first.body == CARD
    assert json.loads((await waiter.answered()).body) == {"id": 1, "card": "4242"}
    duplicate = await there.send(headers=[("idempotency-raise-on-duplicate", "?1")])
    assert duplicate.problem["original_result"]["body"] == {"id": 1, "card": "4242"}


async def test_it_may_keep_that_it_happened_alone(door: MakeDoor) -> None:
    there = door(app := answering(201), redact=lambda scope, response: None)
    assert (await there.send()).body == CARD
    retry = await there.send()
    assert (retry.status, retry.code, retry.problem["original_result"]) == (409, "duplicate", {"body_omitted": True})
    assert await there.state() is State.SUCCEEDED
    assert app.calls == 1


async def test_it_may_leave_out_the_body_alone(door: MakeDoor) -> None:
    there = door(app := answering(201), redact=lambda scope, response: response._replace(body=None))
    await there.send()
    result = (await there.send()).problem["original_result"]
    assert (result["status"], result["body_omitted"], app.calls) == (201, True, 1)


async def test_it_is_asked_of_what_is_kept_and_of_nothing_else(door: MakeDoor) -> None:
    given_responses: list[tuple[str, int, bool]] = []

    def redact(scope: dict[str, Any], response: StoredResponse) -> StoredResponse:
        given_responses.append((scope["path"], response.status, response.body is None))
        return response

    there = door(answering(201, 429, 400, 502, ValueError("raised"), 200), redact=redact)
    for number, path in enumerate(("/created", "/released", "/failed", "/unknown")):
        await there.send(path=path, key=f"k-{number}")
    await there.send(path="/created", key="k-0")
    with pytest.raises(ValueError, match="raised"):
        await there.send(path="/raised", key="k-4")
    await there.send(path="/get", method="GET")
    # What answers an attempt whose outcome is unknown is never replayed: its body isn't kept.
    assert given_responses == [("/created", 201, False), ("/failed", 400, False), ("/unknown", 502, True)]


async def test_a_failed_attempt_s_response_is_redacted_too(door: MakeDoor) -> None:
    there = door(app := answering(400), redact=without_card, on_error="replay")
    assert (await there.send()).body == CARD
    assert json.loads((await there.send()).body)["card"] == "4242"
    assert app.calls == 1


class Panic(BaseException):
    """As extensions raise it that were not written in Python."""


@pytest.mark.parametrize("error", [ValueError(CARD), Panic(CARD), asyncio.CancelledError(CARD)])
async def test_one_that_raises_keeps_nothing_and_lets_nothing_run_again(
    door: MakeDoor, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def redact(scope: dict[str, Any], response: StoredResponse) -> StoredResponse:
        raise error

    there = door(app := answering(201), redact=redact)
    first = await there.send()
    assert (first.status, first.body) == (201, CARD)
    retry = await there.send()
    assert (retry.code, retry.problem["original_result"]) == ("duplicate", {"body_omitted": True})
    assert app.calls == 1
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert f"redact raised {type(error).__qualname__} at test_redaction.py:" in line
    assert "4242" not in caplog.text


async def later(scope: dict[str, Any], response: StoredResponse) -> StoredResponse:
    return response


@pytest.mark.parametrize(
    "change",
    [
        {"headers": ((b"x-a", b"1\r\nset-cookie: a=b"),)},
        {"headers": ((b"x-a\r\nb", b"1"),)},
        {"headers": ((b"x-a", b"1\x00"),)},
        {"headers": ((b"", b"1"),)},
        {"headers": (("x-a", "1"),)},
        {"headers": ((b"x-a",),)},
        {"headers": None},
        {"status": 0},
        {"status": 101},
        {"status": 1000},
        {"status": True},
        {"status": "201"},
        {"status": 204},
        {"status": 205},
        {"body": "text"},
        {"body": 5},
    ],
)
async def test_what_is_no_response_is_not_kept(
    door: MakeDoor, change: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    there = door(app := answering(201), redact=lambda scope, response: response._replace(**change))
    assert (await there.send()).body == CARD
    assert (await there.send()).problem["original_result"] == {"body_omitted": True}
    assert app.calls == 1
    assert "nothing of its response is kept" in caplog.text


@pytest.mark.parametrize(
    "give", [lambda *_: b"body", lambda *_: {}, lambda *_: (201, (), b"", 0), lambda *given: later(*given)]
)
async def test_what_is_of_another_type_is_not_kept(door: MakeDoor, give: Any) -> None:
    there = door(answering(201), redact=lambda scope, response: give(scope, response))
    assert (await there.send()).body == CARD
    assert (await there.send()).problem["original_result"] == {"body_omitted": True}


async def test_what_it_gives_is_kept_by_the_rules_for_all_responses(door: MakeDoor) -> None:
    def redact(scope: dict[str, Any], response: StoredResponse) -> StoredResponse:
        headers = ((b"Set-Cookie", b"a=b"), (b"X-Secret", b"1"), (b"Idempotent-Replayed", b"no"), (b"X-Kept", b" "))
        return StoredResponse(200, headers, bytearray(b"short"), 1)  # type: ignore[arg-type]  # as some code has it

    there = door(answering(201), redact=redact, drop_headers=["X-Secret"])
    first, retry = await there.send(), await there.send()
    assert (first.status, retry.status, retry.body, retry.replayed) == (201, 200, b"short", True)
    assert [retry.value(name) for name in ("set-cookie", "x-secret", "x-kept")] == [None, None, ""]
    record = await there.record()
    assert record.response is not None
    assert record.response.completed_at_ms > 1


async def test_a_body_that_grew_past_the_bound_is_left_out(door: MakeDoor) -> None:
    def redact(scope: dict[str, Any], response: StoredResponse) -> StoredResponse:
        return response._replace(body=b"x" * 101)

    there = door(answering(201), redact=redact, max_result=100)
    await there.send()
    assert (await there.send()).problem["original_result"]["body_omitted"] is True


async def test_a_response_too_large_to_keep_comes_without_its_body(door: MakeDoor) -> None:
    seen: list[bytes | None] = []

    def redact(scope: dict[str, Any], response: StoredResponse) -> StoredResponse:
        seen.append(response.body)
        return response

    there = door(answering(201), redact=redact, max_result=10)
    assert (await there.send()).body == CARD
    assert seen == [None]
    assert (await there.send()).code == "duplicate"


async def test_what_ends_the_process_leaves_a_record_and_goes_on(door: MakeDoor) -> None:
    def redact(scope: dict[str, Any], response: StoredResponse) -> StoredResponse:
        raise SystemExit(3)

    there = door(app := answering(201), redact=redact)
    call = Client("POST", b"/payments", [(b"idempotency-key", b"k-1")], pieces=(b'{"amount": 1}',))
    with pytest.raises(SystemExit):  # awaited here: out of a task it would end the event loop
        await call.call(there.middleware)
    assert call.body == CARD
    await there.becomes(State.SUCCEEDED)
    assert (await there.send()).code == "duplicate"
    assert app.calls == 1


async def test_a_streamed_response_is_redacted_as_a_whole(door: MakeDoor) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for piece in (CARD[:20], CARD[20:]):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body"})

    there = door(app, redact=without_card)
    assert (await there.send()).body == CARD
    assert json.loads((await there.send()).body) == {"id": 1, "card": "4242"}


def test_what_is_passed_is_looked_at() -> None:
    app: Any = answering()
    given: list[tuple[Any, str]] = [("card", "redact is a str: give"), (later, "redact is a coroutine function: give")]
    for redact, text in given:
        with pytest.raises(TypeError, match=f"^{text} a function of the ASGI scope and a StoredResponse"):
            IdempotencyMiddleware(app, cache=MemoryCache(), redact=redact)
