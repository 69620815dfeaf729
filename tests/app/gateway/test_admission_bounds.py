"""What clients can take of a gateway without being admitted: memory and slots, each with one bound for all of them.

Rules of docs/contract.md: R4.25, R9.15.
"""

import asyncio
import socket

import pytest

from oncegate.app.gateway.gateway import Gateway
from testing.inside import attempts_of, middleware_of
from testing.upstreams import Peer, Upstream, answering
from testing.waiting import until
from tests.app.fast_path import CREATED, Talk, gateway_at, keyed, talking

BOUND = 1_000_000
PIECE = bytes(100_000)
UPLOAD = b"POST / HTTP/1.1\r\nhost: a\r\nidempotency-key: %d\r\ncontent-length: 1000000\r\n\r\n"
LARGE = b"HTTP/1.1 200 OK\r\ncontent-length: 20000000\r\n\r\n"


async def until_held(gateway: Gateway, least: int, most: int) -> None:
    """Wait until the gateway counts so many bytes, as its metrics say it too."""
    buffered = middleware_of(gateway).door.buffered
    await until(lambda: least <= buffered.bytes <= most, f"{least} to {most} bytes are held")


async def gauge(talk: Talk) -> int:
    page = await talk.exchange(b"GET /_oncegate/metrics HTTP/1.1\r\nhost: a\r\n\r\n")
    (line,) = [line for line in page.splitlines() if line.startswith(b"oncegate_buffered_bytes ")]
    return int(float(line.split()[1]))


async def test_unfinished_uploads_are_held_up_to_one_bound_and_given_back() -> None:
    async with (
        Upstream(answering(CREATED)) as upstream,
        gateway_at(upstream.url, max_in_flight=2, max_buffered=BOUND) as (honest, gateway, port),
    ):
        uploads: list[Talk] = []
        for number in range(30):
            uploads.append(Talk(*await asyncio.open_connection("127.0.0.1", port)))
            uploads[-1].writer.write(UPLOAD % number + PIECE)
        answers = [asyncio.create_task(each.answer()) for each in uploads]
        while sum(answer.done() for answer in answers) < 20:
            await asyncio.wait([answer for answer in answers if not answer.done()], return_when=asyncio.FIRST_COMPLETED)
        refused = [answer.result() for answer in answers if answer.done()]
        assert all(b"HTTP/1.1 503 " in answer and b'"overloaded"' in answer for answer in refused)
        assert all(b"retry-after" in answer.lower() for answer in refused)
        await until_held(gateway, BOUND - 300_000, BOUND)
        assert 0 < await gauge(honest) <= BOUND
        assert b"HTTP/1.1 201 " in await honest.exchange(keyed()), "what is small is admitted all the same"
        assert upstream.arrivals == 1
        for each in uploads:
            each.leave()
        await until_held(gateway, 0, 0)
        assert await gauge(honest) == 0
        await asyncio.gather(*answers)
        async with talking(port) as talk:
            talk.writer.write(UPLOAD % 99 + PIECE)
            await until_held(gateway, 1, BOUND)
            talk.writer.write(PIECE * 9)
            assert b"HTTP/1.1 201 " in await talk.answer()
        await until_held(gateway, 0, 0)


@pytest.mark.parametrize("rest", [bytes(2_000_000), None], ids=["too large", "too late"])
async def test_what_is_refused_is_counted_no_longer(rest: bytes | None) -> None:
    async with (
        Upstream(answering(CREATED)) as upstream,
        gateway_at(upstream.url, max_buffered=BOUND * 9, body_timeout=20 if rest else 0.3) as (talk, gateway, _),
    ):
        talk.writer.write((UPLOAD % 1).replace(b"content-length: 1000000", b"transfer-encoding: chunked"))
        talk.writer.write(b"1000000\r\n" + PIECE)
        await until_held(gateway, 1, BOUND)
        talk.writer.write(rest or b"")
        assert (b"HTTP/1.1 413 " if rest else b"HTTP/1.1 408 ") in await talk.answer()
        await until_held(gateway, 0, 0)


async def test_requests_that_wait_for_another_one_are_counted() -> None:
    go_on = asyncio.Event()
    late = answering(CREATED, after=go_on)
    async with Upstream(late) as upstream, gateway_at(upstream.url, max_buffered=250_000) as (first, gateway, port):
        data = keyed("k", PIECE, prefer="wait=20")
        first.writer.write(data)
        await until(lambda: upstream.arrivals, "the first request's arrival")
        waiting = [Talk(*await asyncio.open_connection("127.0.0.1", port)) for _ in range(3)]
        answers = [asyncio.create_task(each.exchange(data)) for each in waiting]
        refused, _ = await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
        assert [b'"overloaded"' in answer.result() for answer in refused] == [True]
        await until_held(gateway, 200_000, 200_000)
        go_on.set()
        assert sum(b"idempotent-replayed: true" in answer for answer in await asyncio.gather(*answers)) == 2
        await until_held(gateway, 0, 0)
        for each in waiting:
            each.leave()


async def test_readers_that_take_nothing_hold_no_slot() -> None:
    async def behave(peer: Peer) -> None:
        while request := await peer.request():
            await peer.send(LARGE + bytes(20_000_000) if "/large" in request.line else CREATED)

    async with Upstream(behave) as upstream, gateway_at(upstream.url, max_in_flight=4) as (honest, gateway, port):
        readers = []
        for _ in range(8):
            client = socket.create_connection(("127.0.0.1", port))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            readers.append(Talk(*await asyncio.open_connection(sock=client, limit=4096)))
            readers[-1].read_nothing()
            readers[-1].writer.write(keyed(path="/large"))
            in_flight = middleware_of(gateway).admissions.in_flight
            attempts, slots = attempts_of(in_flight), in_flight.slots
            await until(lambda: len(attempts) == len(readers) and not slots.taken, "a free slot")  # noqa: B023 - at once
        assert b"HTTP/1.1 201 " in await honest.exchange(keyed())
        for each in readers:
            each.leave()
        await until(lambda: not attempts_of(in_flight) and not in_flight._freed, "the attempts' end")
        assert in_flight.slots.taken == 0
