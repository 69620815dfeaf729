"""What a client sees of the middleware is the same in front of every framework.

Rules of docs/contract.md: R4.8, R12.1.
"""

import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from oncegate.cache.record import State
from testing.waiting import until
from tests.middleware.conftest import MakeDoor
from tests.middleware.door import PATIENCE, Call, Door
from tests.middleware.framework_apps import FRAMEWORKS, Calls

MakeShop = Callable[..., Awaitable[tuple[Door, Calls]]]


@pytest.fixture(params=FRAMEWORKS)
def shop(request: pytest.FixtureRequest, door: MakeDoor, caplog: pytest.LogCaptureFixture) -> MakeShop:
    caplog.set_level(logging.CRITICAL)  # of what the endpoints raise, frameworks log tracebacks

    async def make(**options: object) -> tuple[Door, Calls]:
        calls = Calls()
        return door(await FRAMEWORKS[request.param](calls), **options), calls

    return make


async def test_first_request_is_executed_and_its_retry_replayed(shop: MakeShop) -> None:
    there, calls = await shop()
    first, replay = await there.send(path="/pay"), await there.send(path="/pay")
    assert (first.status, json.loads(first.body), first.replayed) == (201, {"id": 1}, False)
    assert (replay.status, replay.body, replay.replayed) == (201, first.body, True)
    assert replay.value("content-type") == first.value("content-type")
    assert calls.count == 1


async def test_another_payload_under_the_same_key_is_refused(shop: MakeShop) -> None:
    there, calls = await shop()
    await there.send(path="/pay")
    other = await there.send(b"other", path="/pay")
    assert (other.status, other.code) == (422, "key-reused")
    assert calls.count == 1


async def test_concurrent_request_is_refused_or_waits(shop: MakeShop) -> None:
    there, calls = await shop()
    first = there.begin(path="/late")
    await calls.arrived.wait()
    assert (await there.send(path="/late")).status == 409
    waiting = there.begin(path="/late", headers=[("prefer", "wait=20")])
    calls.go.set()
    assert (await waiting.answered()).body == (await first.answered()).body
    assert waiting.replayed
    assert calls.count == 1


async def test_client_that_leaves_ends_no_attempt(shop: MakeShop) -> None:
    there, calls = await shop()
    call = there.begin(path="/late")
    await calls.arrived.wait()
    call.left.set()
    await call.gone()
    calls.go.set()
    await there.becomes(State.SUCCEEDED)
    assert (await there.send(path="/late")).replayed
    assert calls.count == 1


async def test_refusal_of_the_app_s_own_is_kept_as_it_is(shop: MakeShop) -> None:
    there, calls = await shop(on_error="replay")
    first, replay = await there.send(path="/declined"), await there.send(path="/declined")
    assert (first.status, replay.status, replay.replayed) == (402, 402, True)
    assert first.body == replay.body
    assert calls.count == 1


async def test_endpoint_that_raises_is_a_failed_attempt(shop: MakeShop) -> None:
    """Some frameworks answer 500 and raise for the server's log."""
    there, calls = await shop(on_error="replay")
    assert (await raising(there)).status == 500
    assert await there.state() is State.FAILED
    replay = await raising(there)
    assert (replay.status, replay.replayed) == (500, True)
    assert calls.count == 1


async def raising(there: Door) -> Call:
    call = there.begin(path="/broken")
    with suppress(ValueError):
        await call.answered()
    return call


async def test_stream_is_streamed_and_replayed_and_leaves_nothing_behind(shop: MakeShop) -> None:
    there, calls = await shop(max_in_flight=1)
    call = there.begin(path="/stream")
    await until(lambda: call.body == b"one")
    calls.go.set()
    assert (await call.answered()).body == b"onetwo"
    for key in ("k-1", "k-2"):  # with a slot for one alone
        assert (await there.send(path="/stream", key=key)).body == b"onetwo"
    assert calls.count == 2
    assert await there.middleware.drain(PATIENCE) == 0
    assert there.slots == 0


async def test_upload_in_pieces_arrives_whole(shop: MakeShop) -> None:
    there, calls = await shop()
    pieces = [b"x" * 65_536] * 12
    for replayed in (False, True):
        answer = await there.send(path="/upload", pieces=pieces)
        assert (answer.status, answer.replayed) == (201, replayed)
    assert calls.uploaded == 12 * 65_536
    assert calls.count == 1
