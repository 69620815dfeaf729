"""A request's body: read whole, within its limits of size and time, or not at all."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from oncegate.middleware.http.asgi import Message, Receive, read_body
from oncegate.middleware.rules.errors import PayloadTooLarge, RequestTimeout

MILLION = 10**6


def giving(*messages: dict[str, Any], waits: bool = False) -> Receive:
    """ASGI ``receive`` that gives ``messages``, and nothing after them; with ``waits``, none of them at once."""
    left = [*messages]

    async def receive() -> Message:
        if waits or not left:
            await asyncio.sleep(0)
        if not left:
            await asyncio.Event().wait()
        return left.pop(0)

    return receive


def piece(body: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


@pytest.mark.parametrize("waits", [False, True])
async def test_it_is_whole_however_it_comes_and_pieces_are_counted(waits: bool) -> None:
    held: list[int] = []
    last = {"type": "http.request", "body": bytearray(b"c")}
    receive = giving(piece(b"aa"), piece(b""), last, waits=waits)
    assert await read_body(receive, {}, 3, 30.0, held.append) == b"aac"
    assert held == [2, 0, 1]
    held.clear()
    assert await read_body(giving(piece(b"abc", more=False), waits=waits), {}, 3, 30.0, held.append) == b"abc"
    assert await read_body(giving({"type": "http.request"}, waits=waits), {}, 3, 30.0, held.append) == b""
    assert held == []


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("before", [0, 1, 2])
async def test_a_client_that_leaves_has_sent_no_request(waits: bool, before: int) -> None:
    messages = [piece(b"a")] * before
    assert await read_body(giving(*messages, {"type": "http.disconnect"}, waits=waits), {}, 3, 30.0) is None


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("messages", [[piece(b"abcd", more=False)], [piece(b"ab"), piece(b"cd")]])
async def test_what_is_more_than_the_limit_is_refused(messages: list[dict[str, Any]], waits: bool) -> None:
    with pytest.raises(PayloadTooLarge):
        await read_body(giving(*messages, waits=waits), {}, 3, 30.0)


@pytest.mark.parametrize(
    ("declared", "limit", "refused"),
    [
        (b"4", 3, True),
        (b"3", 3, False),
        (b"999999", MILLION - 2, True),
        (b"999999", MILLION - 1, False),
        (b"1000000", MILLION - 1, True),
        (b"1000000", MILLION, False),
        (b"1000001", MILLION, True),
        (b"0000004", 3, True),
        (b"9" * 4000, MILLION, True),
        (b"ten", 3, False),
        (b"ten million", MILLION, False),
    ],
)
async def test_what_declares_more_than_the_limit_is_refused_unread(declared: bytes, limit: int, refused: bool) -> None:
    messages = giving(piece(b"", more=False))
    fields = {b"content-length": [declared]}
    if refused:
        with pytest.raises(PayloadTooLarge):
            await read_body(messages, fields, limit, 30.0)
        assert await messages() == piece(b"", more=False)
    else:
        assert await read_body(messages, fields, limit, 30.0) == b""


@pytest.mark.parametrize("messages", [[], [piece(b"a")]])
async def test_what_does_not_come_in_time_is_refused(messages: list[dict[str, Any]]) -> None:
    with pytest.raises(RequestTimeout):
        await read_body(giving(*messages), {}, 3, 0.01)


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("fails", [LookupError, OSError])
async def test_an_error_of_the_server_is_passed_on(fails: Callable[[], Exception], waits: bool) -> None:
    async def receive() -> Message:
        if waits:
            await asyncio.sleep(0)
        raise fails()

    with pytest.raises(LookupError if fails is LookupError else OSError):
        await read_body(receive, {}, 3, 30.0)


async def test_who_is_cancelled_while_reading_ends_as_cancelled() -> None:
    reading = asyncio.create_task(read_body(giving(piece(b"a")), {}, 3, 30.0))
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
