"""What one round of the event loop has to do for what is sent is bounded: by counts, never by a clock.

Rules of docs/contract.md: R4.7, R9.14, R9.22.
"""

import asyncio
import socket
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate.app.server.head import MAX_INCOMPLETE, TargetRefused, unquoted
from oncegate.app.upstream.connection import UpstreamConnection
from oncegate.cache.record import StoredResponse
from oncegate.middleware.outcome.problems import MAX_ESCAPES, original_result
from testing.growth import is_linear
from testing.upstreams import PATIENCE, Upstream, answering
from testing.waiting import until
from tests.app.fast_path import CREATED, gateway_at

CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


async def test_an_upstreams_chunks_of_a_byte_are_parsed_in_several_rounds() -> None:
    chunks = 40_000
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    with theirs:
        _, connection = await loop.create_connection(lambda: UpstreamConnection("upstream"), sock=ours)
        connection.send(b"GET / HTTP/1.1\r\n\r\n", b"", is_head=False)
        connection.data_received(CHUNKED + b"1\r\na\r\n" * chunks + b"0\r\n\r\n")
        assert 0 < connection.response.buffered < chunks / 4
        assert not connection.response.complete
        steps, before, body = [], 0, b""
        async with asyncio.timeout(PATIENCE):
            while not connection.response.complete:
                before = len(body)
                body += await connection.read()
                steps.append(len(body) - before)
                await asyncio.sleep(0)
            body += await connection.read()
        assert body == b"a" * chunks
        assert max(steps) < chunks / 4
        assert connection.finish(), "it carries another one"
        connection.close()


async def test_what_comes_behind_a_long_response_spoils_its_connection() -> None:
    for body in (b"1\r\na\r\n" * 40_000, b"%x\r\n" % 150_000 + bytes(150_000) + b"\r\n"):
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        with theirs:
            _, connection = await loop.create_connection(lambda: UpstreamConnection("upstream"), sock=ours)
            connection.send(b"GET / HTTP/1.1\r\n\r\n", b"", is_head=False)
            connection.data_received(CHUNKED + body + b"0\r\n\r\n" + CREATED)
            await until(lambda: connection.response.complete, "the end")  # noqa: B023 - awaited at once
            assert connection.response.surplus
            assert not connection.finish()
            connection.abort()


async def test_an_end_of_the_connection_counts_behind_all_that_was_read() -> None:
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    with theirs:
        transport, connection = await loop.create_connection(lambda: UpstreamConnection("upstream"), sock=ours)
        connection.send(b"GET / HTTP/1.1\r\n\r\n", b"", is_head=False)
        connection.data_received(CHUNKED + b"1\r\na\r\n" * 40_000 + b"0\r\n\r\n")
        connection.connection_lost(None)
        assert connection.response.complete
        assert connection.error is None
        transport.abort()
        await asyncio.sleep(0)


async def test_dense_chunks_reach_the_client_whole() -> None:
    chunks = CHUNKED + b"1\r\na\r\n" * 100_000 + b"0\r\n\r\n"
    async with Upstream(answering(chunks)) as upstream, gateway_at(upstream.url) as (talk, _, _):
        for _ in range(2):
            answer = await talk.exchange(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
            assert answer.count(b"a") >= 100_000
        assert upstream.arrivals == 2


async def test_a_request_of_thousands_of_fields_is_refused() -> None:
    async with Upstream(answering(CREATED)) as upstream, gateway_at(upstream.url) as (talk, _, _):
        fields = b"a:\r\n" * 998
        assert b" 201 " in await talk.exchange(b"GET / HTTP/1.1\r\nhost: a\r\n" + fields + b"\r\n")
        assert b" 431 " in await talk.exchange(b"GET / HTTP/1.1\r\nhost: a\r\n" + fields * 2 + b"\r\n")
        assert upstream.arrivals == 1


async def test_a_target_that_is_malformed_over_and_over_is_refused() -> None:
    async with Upstream(answering(CREATED)) as upstream, gateway_at(upstream.url) as (talk, _, _):
        target = b"/%" * MAX_INCOMPLETE
        assert b" 201 " in await talk.exchange(b"GET " + target + b" HTTP/1.1\r\nhost: a\r\n\r\n")
        assert b" 400 " in await talk.exchange(b"GET " + target + b"/% HTTP/1.1\r\nhost: a\r\n\r\n")
        assert upstream.arrivals == 1


PIECES = [*"%=a41e2F_./", "==", *("%41", "%e2%82%ac", "%3d", "%0a", "%25", "%00", "%2F")]


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_a_path_is_decoded_as_ever(path: str) -> None:
    assert unquoted(path.encode()) == unquote(path)


def test_a_path_that_is_malformed_over_and_over_is_refused() -> None:
    assert unquoted(b"/%" * MAX_INCOMPLETE) == "/%" * MAX_INCOMPLETE
    with pytest.raises(TargetRefused):
        unquoted(b"/%" * (MAX_INCOMPLETE + 1))


@pytest.mark.parametrize("piece", [b'"', b"\0", b"\n", b"\\"])
def test_a_result_that_is_mostly_escapes_is_told_as_base64(piece: bytes) -> None:
    few, many = piece * MAX_ESCAPES, piece * (MAX_ESCAPES + 1)
    assert original_result(StoredResponse(200, (), few, 0))["body"] == few.decode()
    assert original_result(StoredResponse(200, (), many, 0))["body_encoding"] == "base64"
    # Both sizes are of those that the allocator takes from the system: one of each kind would differ by more than their sizes.
    assert is_linear(
        lambda data: original_result(StoredResponse(200, (), data, 0)), lambda size: piece * size, 8_000_000
    )
