"""What is held for clients that take less than they are given: one bound for all of them, and others are served.

Rules of docs/contract.md: R9.21.
"""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from oncegate.middleware.admission.buffers import Unread
from oncegate.middleware.admission.observe import Watch
from testing.upstreams import PATIENCE, Behaviour, Peer, Upstream
from testing.waiting import until
from tests.app.fast_path import CREATED, Talk, answered, gateway_at, keyed

SIZE = 12_000_000
"""More than kernels hold for a connection."""
BOUND = 40_000_000
READERS = 12
HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % SIZE


async def whole(peer: Peer) -> None:
    while request := await peer.request():
        await peer.send(HEAD + bytes(SIZE) if "/large" in request.line else CREATED)


async def in_pieces(peer: Peer) -> None:
    """The first piece is relayed before the rest has come, so that the reader is slow while the attempt still runs."""
    while request := await peer.request():
        if "/large" not in request.line:
            await peer.send(CREATED)
            continue
        await peer.send(HEAD)
        for _ in range(SIZE // 100_000):
            await peer.send(bytes(100_000))
            await asyncio.sleep(0)


async def stalled(port: int, data: bytes) -> Talk:
    client = socket.create_connection(("127.0.0.1", port))
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    talk = Talk(*await asyncio.open_connection(sock=client, limit=4096))
    talk.read_nothing()
    talk.writer.write(data)
    return talk


async def nothing_held(unread: Unread) -> None:
    await until(lambda: not unread.bytes and not unread._readers, "nothing to be held")


async def number(talk: Talk, name: bytes) -> int:
    page = await talk.exchange(b"GET /_oncegate/metrics HTTP/1.1\r\nhost: a\r\n\r\n")
    (line,) = [line for line in page.splitlines() if line.startswith(name + b" ")]
    return int(float(line.split()[1]))


@asynccontextmanager
async def gateway_with(behave: Behaviour, **settings: Any) -> AsyncIterator[tuple[Talk, Unread, int]]:
    async with (
        Upstream(behave) as upstream,
        gateway_at(upstream.url, max_unread=BOUND, idempotency={"max_result": 2 * SIZE}, **settings) as (
            honest,
            gateway,
            port,
        ),
    ):
        assert gateway.unread is not None
        yield honest, gateway.unread, port


async def until_dropped(honest: Talk, unread: Unread, least: int) -> None:
    """Wait until so many readers were dropped. What is held stays within the bound all the time."""
    async with asyncio.timeout(PATIENCE):
        while await number(honest, b"oncegate_readers_dropped_total") < least:
            assert unread.bytes <= BOUND


@pytest.mark.parametrize("fast_path", [True, False], ids=["on the fast path", "by tasks"])
async def test_replays_for_readers_that_take_nothing_are_held_up_to_one_bound(fast_path: bool) -> None:
    async with gateway_with(whole, fast_path=fast_path) as (honest, unread, port):
        data = keyed("k", path="/large")
        assert len(await honest.exchange(data)) > SIZE
        readers = [await stalled(port, data) for _ in range(READERS)]
        await until_dropped(honest, unread, READERS - BOUND // SIZE)
        await until(lambda: unread.bytes == BOUND // SIZE * SIZE, "the others' responses to be held")
        assert await number(honest, b"oncegate_unread_bytes") == unread.bytes
        assert await number(honest, b"oncegate_readers_dropped_total") == READERS - BOUND // SIZE
        answer = await honest.exchange(data)
        assert b"idempotent-replayed: true" in answer
        assert len(answer) > SIZE, "who reads gets it, also where as much as may be is held"
        for each in readers:
            each.leave()
        await nothing_held(unread)
        assert await number(honest, b"oncegate_unread_bytes") == 0


async def test_attempts_whose_readers_take_nothing_are_finished_and_recorded() -> None:
    async with gateway_with(in_pieces) as (honest, unread, port):
        requests = [keyed(path="/large") for _ in range(READERS)]
        readers = [await stalled(port, each) for each in requests]
        await until_dropped(honest, unread, READERS - BOUND // SIZE)
        for request in requests:
            answer = await answered(honest, request)
            assert b"idempotent-replayed: true" in answer
            assert len(answer) > SIZE
        for each in readers:
            each.leave()
        await nothing_held(unread)


async def test_responses_past_the_cap_count_too() -> None:
    async with (
        Upstream(whole) as upstream,
        gateway_at(upstream.url, max_unread=BOUND // 10, idempotency={"max_result": 1_000_000}) as (
            honest,
            gateway,
            port,
        ),
    ):
        unread = gateway.unread
        assert unread is not None
        readers = [await stalled(port, keyed(path="/large")) for _ in range(READERS)]
        await until_dropped(honest, unread, READERS // 2)
        assert b"HTTP/1.1 201 " in await honest.exchange(keyed())
        for each in readers:
            each.leave()
        await nothing_held(unread)


async def test_pipelined_replays_count_as_well() -> None:
    async with gateway_with(whole) as (honest, unread, port):
        data = keyed("k", path="/large")
        await honest.exchange(data)
        reader = await stalled(port, data * 3)
        await until(lambda: unread.bytes >= 2 * SIZE, "the second one to wait behind the first one")
        reader.leave()
        await until(lambda: not unread.bytes, "nothing to be held")


async def test_a_transport_that_does_not_pause_by_itself_is_counted_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """As asyncio's of Python 3.12.0 to 3.12.8, 3.13.0 and 3.13.1, whose ``writelines`` forgets it."""

    def writelines(self: Any, chunks: Iterable[bytes]) -> None:
        low, high = self.get_write_buffer_limits()
        self._set_write_buffer_limits(sys.maxsize)
        self.write(b"".join(chunks))
        self._set_write_buffer_limits(high, low)

    monkeypatch.setattr("asyncio.selector_events._SelectorSocketTransport.writelines", writelines)
    async with gateway_with(whole) as (honest, unread, port):
        data = keyed("k", path="/large")
        await honest.exchange(data)
        reader = await stalled(port, data)
        await until(lambda: unread.bytes == SIZE, "all of it to be counted")
        reader.leave()
        await nothing_held(unread)


class Given:
    """A reader of the count alone."""

    def __init__(self, *, takes: bool = False) -> None:
        self.takes = takes
        self.dropped = False

    def has_taken(self) -> bool:
        return self.takes

    def drop(self) -> None:
        self.dropped = True


def test_who_has_taken_nothing_for_longest_goes_first() -> None:
    unread = Unread(10, Watch())
    slow, first, second, third = readers = [Given(takes=True), Given(), Given(), Given()]
    for each in readers:
        unread.hold(each, 3)
    assert [each.dropped for each in (slow, first, second, third)] == [False, True, False, False]
    unread.hold(third, 3)
    assert [each.dropped for each in (slow, second, third)] == [False, True, False]
    assert unread.bytes == 9
    for each in readers:
        unread.release(each)
    assert unread.bytes == 0


def test_where_all_take_something_the_bound_holds_all_the_same() -> None:
    unread = Unread(100, Watch())
    readers = [Given(takes=True) for _ in range(1000)]
    for each in readers:
        unread.hold(each, 1)
        assert unread.bytes <= 100
    assert sum(each.dropped for each in readers) == 900


def test_what_alone_is_too_much_is_dropped() -> None:
    unread = Unread(10, Watch())
    reader = Given()
    unread.hold(reader, 11)
    assert (reader.dropped, unread.bytes) == (True, 0)
