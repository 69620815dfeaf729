"""What is stored is replayed as it lies where that can be, and as ever where it can't, with the fast path and without it.

Rules of docs/contract.md: R3.11.
"""

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from oncegate.cache.codec import decode, encode
from oncegate.cache.record import StoredResponse
from testing.servers import RedisServer
from testing.upstreams import Upstream, answering
from testing.waiting import until
from tests.app.fast_path import Talk, gateway_at, keyed, tasks_made

Lines = tuple[tuple[bytes, bytes], ...]
ANSWER = b"\r\n".join(
    [
        b"HTTP/1.1 201 Created",
        b"Server: nginx",
        b"Date: Thu, 01 Jan 1970 00:00:00 GMT",
        b"Keep-Alive: timeout=5",
        b"Link: </1>; rel=a",
        b"X-Hop: 1",
        b"Connection: keep-alive, X-Hop",
        b"Link: </2>; rel=b",
        b"Set-Cookie: a=b",
        b"Content-Length: 2",
        b"",
        b"{}",
    ]
)
LENGTH = (b"content-length", b"2")
TYPE = (b"content-type", b"text/plain")


class Place:
    """Two gateways, of which one has no fast path, with one record in Redis."""

    def __init__(self, redis: RedisServer, namespace: str, fast: Talk, other: Talk) -> None:
        self._redis = redis
        self._namespace = namespace
        self.fast = fast
        self.other = other

    async def replayed(self) -> bytes:
        """The replay, which is the same with the fast path and without it; without seconds of the moment."""
        request = keyed("k")
        with tasks_made() as made:
            fast = _timeless(await self.fast.exchange(request))
        assert made == [], "it left the fast path"
        assert _timeless(await self.other.exchange(request)) == fast
        return fast

    def plant(self, headers: Lines, status: int = 201, body: bytes = b"{}") -> None:
        """Have these be what is stored."""
        (key,) = self._redis.command("KEYS", f"{self._namespace}:*")
        record = decode(self._redis.command("GET", key), 1)
        record = replace(record, response=StoredResponse(status, headers, body, 1))
        self._redis.command("SET", key, encode(record), "KEEPTTL")


def _timeless(answer: bytes) -> bytes:
    answer, dates = re.subn(rb"\r\ndate: [^\r]+", b"\r\ndate: now", answer)
    assert dates == 1
    return re.sub(rb"ttl=\d+", b"ttl=1", answer)


def expected(*lines: bytes, status: bytes = b"201 Created", body: bytes = b"{}") -> bytes:
    marks = [b"idempotency-key: k", b"idempotent-replayed: true", b"cache-status: oncegate; hit; ttl=1", b"date: now"]
    return b"\r\n".join([b"HTTP/1.1 " + status, *lines, *marks, b"", body])


@pytest.fixture
async def place(redis: RedisServer) -> AsyncIterator[Place]:
    rules: dict[str, Any] = {"cache": redis.url, "namespace": uuid4().hex}
    async with (
        Upstream(answering(ANSWER)) as upstream,
        gateway_at(upstream.url, **rules) as (fast, _, _),
        gateway_at(upstream.url, fast_path=False, **rules) as (other, _, _),
    ):
        assert (await other.exchange(keyed("k"))).startswith(b"HTTP/1.1 201 ")
        yield Place(redis, rules["namespace"], fast, other)
        assert upstream.arrivals == 1


async def test_what_is_replayed_is_end_to_end_in_its_order_with_one_date(place: Place) -> None:
    lines = [b"server: nginx", b"link: </1>; rel=a", b"link: </2>; rel=b", b"content-length: 2", b"via: 1.1 oncegate"]
    assert await place.replayed() == expected(*lines)


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param((TYPE, LENGTH, (b"a", b"1"), (b"a", b"2"), (b"a", b"1")), id="one name thrice"),
        pytest.param((LENGTH, (b"a", b""), (b"b", b"")), id="empty"),
        pytest.param((LENGTH, (b"a", b","), (b"b", b"],["), (b"c", b"],["), (b"d", b",")), id="between two of JSON"),
        pytest.param((LENGTH, (b"a", b'"],["'), (b"b", b"\\"), (b"c", b'","')), id="escaped"),
        pytest.param((LENGTH, (b"a", b"caf\xe9\x7f"), (b"b", b"\t1\t2")), id="not ASCII"),
        pytest.param((LENGTH, (b"a", b'"]],"s":200,"t":1,'), (b"b", b"]],")), id="a head within a text"),
    ],
)
async def test_any_line_is_replayed_as_it_was(place: Place, headers: Lines) -> None:
    place.plant(headers)
    assert await place.replayed() == expected(*(b"%b: %b" % line for line in headers))


@pytest.mark.parametrize(
    ("headers", "lines", "body"),
    [
        pytest.param(
            (TYPE, (b"transfer-encoding", b"chunked"), LENGTH),
            [b"content-type: text/plain", b"content-length: 2"],
            b"{}",
            id="a coding of the connection",
        ),
        pytest.param(((b"transfer-encoding", b"gzip, chunked"),), [], b"2\r\n{}\r\n0\r\n\r\n", id="a coding alone"),
        pytest.param((TYPE,), [b"content-type: text/plain"], b"2\r\n{}\r\n0\r\n\r\n", id="no length"),
        pytest.param((LENGTH, LENGTH), [b"content-length: 2"] * 2, b"{}", id="a length twice"),
        pytest.param(((b"content-length", b"02"),), [b"content-length: 02"], b"{}", id="a length spelled otherwise"),
    ],
)
async def test_framing_that_is_stored_is_judged(place: Place, headers: Lines, lines: list[bytes], body: bytes) -> None:
    place.plant(headers)
    chunked = [b"transfer-encoding: chunked"] if body != b"{}" else []
    answer = await place.replayed()
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert head.split(b"\r\n")[1:] == expected(*lines).partition(b"\r\n\r\n")[0].split(b"\r\n")[1:] + chunked
    assert rest == body


async def test_a_stored_end_of_the_connection_ends_it(place: Place) -> None:
    place.plant((LENGTH, (b"connection", b"close")))
    answer = await place.replayed()
    assert answer.endswith(b"\r\nconnection: close\r\n\r\n{}")
    assert answer.count(b"connection:") == 1


async def test_a_body_of_another_length_is_not_sent(place: Place) -> None:
    place.plant(((b"content-length", b"3"),))
    assert b" 500 " in (await place.fast.exchange(keyed("k"))).partition(b"\r\n")[0]


@pytest.mark.parametrize("octet", [b"\n", b"\r", b"\x00"])
async def test_what_would_end_a_line_is_not_sent(place: Place, octet: bytes) -> None:
    place.plant((LENGTH, (b"a", b"1" + octet + b"b: 2")))
    for talk in (place.fast, place.other):
        answer = await talk.exchange(keyed("k"))
        assert b" 500 " in answer.partition(b"\r\n")[0]
        assert b"b: 2" not in answer


async def test_no_body_is_no_body(place: Place) -> None:
    place.plant((TYPE,), 204, b"")
    assert await place.replayed() == expected(b"content-type: text/plain", status=b"204 No Content", body=b"")


async def test_a_client_that_is_behind_in_reading_gets_all_of_it(place: Place) -> None:
    body = b"x" * 8_000_000
    headers = (TYPE, (b"content-length", b"%d" % len(body)), (b"a", b"1"), (b"a", b"2"))
    place.plant(headers, body=body)
    talk = place.fast
    talk.read_nothing()
    talk.writer.write(keyed("k") * 2)
    with tasks_made() as made:
        await until(lambda: made != [], "the second answer waits")
    talk.read_nothing(nothing=False)
    for _ in range(2):
        assert _timeless(await talk.answer()) == expected(*(b"%b: %b" % line for line in headers), body=body)
