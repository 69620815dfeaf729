"""What is under enforcement, what passes, and when a request is one at all.

Rules of docs/contract.md: R2.6, R2.7, R2.8, R2.9, R2.10, R2.11, R2.12, R2.14, R3.6, R3.7, R3.19, R4.14.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from oncegate.cache.record import State
from oncegate.middleware.rules.settings import Route
from tests.middleware.conftest import MakeDoor
from tests.middleware.door import Answering, Call


@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_methods_post_and_patch_are_enforced_by_default(door: MakeDoor, method: str) -> None:
    there = door(app := Answering(201))
    await there.send(method=method)
    assert (await there.send(method=method)).replayed
    assert app.calls == 1


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "post"])
async def test_methods_every_other_passes_untouched(door: MakeDoor, method: str) -> None:
    app = Answering(200, headers=[(b"idempotent-replayed", b"upstream"), (b"cache-status", b"upstream; hit")])
    there = door(app)
    for _ in range(2):
        answer = await there.send(method=method, headers=[("idempotency-attempt", "7")])
        assert answer.headers == [(b"idempotent-replayed", b"upstream"), (b"cache-status", b"upstream; hit")]
        assert app.lines("idempotency-attempt") == ["7"]
    assert app.calls == 2
    assert await there.state() is State.ABSENT


async def test_methods_are_configurable_per_route(door: MakeDoor) -> None:
    there = door(app := Answering(200), routes=[Route(path="/things/*", methods=("PUT",))])
    await there.send(method="PUT", path="/things/1")
    assert (await there.send(method="PUT", path="/things/1")).replayed
    assert (await there.send(method="PUT", path="/others/1")).value("cache-status") is None
    assert app.calls == 2


async def test_methods_a_request_that_passes_is_streamed_both_ways(door: MakeDoor) -> None:
    echoed: list[bytes] = []

    async def echo(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        more = True
        while more:
            message = await receive()
            more = message["more_body"]
            echoed.append(message["body"])
            await send({"type": "http.response.body", "body": message["body"], "more_body": more})

    second = asyncio.Event()
    call = door(echo).begin(method="PUT", pieces=(b"one", second, b"two"))
    await call.started.wait()
    assert not call.done
    second.set()
    await call.answered()
    assert echoed == [b"one", b"two"]
    assert call.body == b"onetwo"


@pytest.mark.parametrize("headers", [(), (("idempotency-attempt", "7"),)], ids=["as it is", "claims an attempt"])
async def test_keyless_request_passes_with_cache_status_bypass(
    door: MakeDoor, headers: Sequence[tuple[str, str]]
) -> None:
    there = door(app := Answering(201, headers=[(b"Idempotent-Replayed", b"true"), (b"set-cookie", b"a=1")]))
    for _ in range(2):
        answer = await there.send(key=None, headers=headers)
        assert answer.value("cache-status") == "oncegate; fwd=bypass"
        assert answer.value("set-cookie") == "a=1"
        assert not [name for name, _ in answer.headers if name.lower() == b"idempotent-replayed"]
        assert app.lines("idempotency-attempt") == []
    assert app.calls == 2


async def test_keyless_request_is_not_held_to_the_limits_of_enforcement(door: MakeDoor) -> None:
    there = door(app := Answering(201), max_request_body=2)
    assert (await there.send(b"longer than that", key=None)).status == 201
    assert app.bodies == [b"longer than that"]


async def test_a_missing_key_is_made_forwarded_and_returned(door: MakeDoor) -> None:
    there = door(app := Answering(201), on_missing_key="generate")
    first, second = await there.send(key=None), await there.send(key=None)
    made = first.value("idempotency-key")
    assert made is not None
    assert made != second.value("idempotency-key"), "keys are never derived from a payload"
    assert app.lines("idempotency-key", 0) == [made]
    assert first.value("cache-status") == "oncegate; fwd=miss; stored; ttl=86400"
    retry = await there.send(key=made)
    assert retry.replayed
    assert retry.body == b"answer 1"
    assert app.calls == 2


async def test_key_is_forwarded_unchanged(door: MakeDoor) -> None:
    app = Answering(201)
    await door(app).send(key='"a b";v=1')
    assert app.lines("idempotency-key") == ['"a b";v=1']


@pytest.mark.parametrize("pieces", [(None,), (b"{", None), (b"{", b'"amount"', None)], ids=["at once", "one", "two"])
async def test_body_cut_short_is_no_request(door: MakeDoor, pieces: tuple[bytes | None, ...]) -> None:
    there = door(app := Answering(201))
    call = await there.send(pieces=pieces)
    assert call.messages == []
    assert app.calls == 0
    assert await there.state() is State.ABSENT
    await there.send(b'{"amount": 1}')
    assert app.bodies == [b'{"amount": 1}']


async def test_body_whose_upload_is_cancelled_is_no_request(door: MakeDoor) -> None:
    there = door(app := Answering(201))
    call = there.begin(pieces=(b"{", asyncio.Event(), b"}"))
    await asyncio.sleep(0)
    await call.gone()
    assert app.calls == 0
    assert await there.state() is State.ABSENT


async def test_body_in_pieces_arrives_whole(door: MakeDoor) -> None:
    there = door(app := Answering(201))
    await there.send(pieces=(b"a", b"", b"bc", b""))
    assert app.bodies == [b"abc"]
    assert (await there.send(b"abc")).replayed


async def test_body_that_does_not_arrive_in_time_is_request_timeout(door: MakeDoor) -> None:
    there = door(app := Answering(201), body_timeout=0.05)
    call = await there.send(pieces=(b"{", asyncio.Event(), b"}"))
    assert (call.status, call.code, call.problem["retryable"]) == (408, "request-timeout", True)
    assert call.value("connection") == "close"
    assert app.calls == 0
    assert await there.state() is State.ABSENT


async def test_body_timeout_is_for_the_whole_body(door: MakeDoor) -> None:
    """What the first piece took is not given to the rest once more."""
    there = door(Answering(201), body_timeout=2)
    first = asyncio.Event()

    async def too_late() -> None:
        await asyncio.sleep(3.0)  # of the 3.5 that it would take
        for _ in range(1000):  # what was due before, but for a machine that stood still, comes first
            await asyncio.sleep(0)

    call = there.begin(pieces=(first, b"{", asyncio.Event(), b"}"))
    asyncio.get_running_loop().call_later(1.5, first.set)
    late = asyncio.create_task(too_late())
    assert (await call.answered()).status == 408
    assert not late.done()
    late.cancel()


async def test_app_waits_for_ever_for_a_second_message(door: MakeDoor) -> None:
    """The body comes at once, and no disconnect ever: an app that listens for one must not give up."""
    received: list[object] = []
    go = asyncio.Event()

    async def listening(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        listener = asyncio.create_task(receive())
        await go.wait()
        received.append(listener.done())
        listener.cancel()
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    there = door(listening)
    call = there.begin()
    call.left.set()
    await there.becomes(State.IN_FLIGHT)
    go.set()
    assert (await call.answered()).status == 201
    assert received == [False]


def duplicate(call: Call) -> bool:
    return call.status == 409 and call.code == "duplicate"


@pytest.mark.parametrize("value", ["?1", "1", "true", "True", " ?1 "])
async def test_raise_on_duplicate_is_asked_for_by_header(door: MakeDoor, value: str) -> None:
    there = door(app := Answering(201))
    first = await there.send(headers=[("idempotency-raise-on-duplicate", value)])
    assert first.status == 201, "the first request is no duplicate"
    assert duplicate(await there.send(headers=[("idempotency-raise-on-duplicate", value)]))
    assert (await there.send()).replayed, "without the header: the plain replay"
    assert app.calls == 1


@pytest.mark.parametrize("value", ["?0", "0", "false", "", "yes"])
async def test_raise_on_duplicate_any_other_value_is_a_plain_replay(door: MakeDoor, value: str) -> None:
    there = door(Answering(201))
    await there.send()
    assert (await there.send(headers=[("idempotency-raise-on-duplicate", value)])).replayed


async def test_raise_on_duplicate_can_be_a_route_s_setting(door: MakeDoor) -> None:
    there = door(Answering(201), routes=[Route(path="/payments", raise_on_duplicate=True)])
    await there.send()
    assert duplicate(await there.send())
    assert duplicate(await there.send(headers=[("idempotency-raise-on-duplicate", "?0")]))
    await there.send(path="/orders", key="k-2")
    assert (await there.send(path="/orders", key="k-2")).replayed
