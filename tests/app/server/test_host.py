"""Which host a request is for (RFC 9112 section 3.2): one answer, whoever reads it.

Rules of docs/contract.md: R5.12, R9.3.
"""

from typing import Any

import pytest

from testing.listening import GET, echo, serving
from testing.served import raw, served
from testing.upstreams import OK, Upstream, answering

CLOSE = b"Connection: close\r\nContent-Length: 0\r\n\r\n"


async def exchanged(head: bytes, **settings: Any) -> tuple[bytes, Upstream]:
    """What comes back for one POST, and the upstream that may have seen it."""
    async with Upstream(answering(OK, OK)) as upstream, served(upstream.url, **settings) as (client, _):
        return await raw(client, head + CLOSE), upstream


UNCLEAR = pytest.mark.parametrize(
    "head",
    [
        b"POST /a HTTP/1.1\r\n",
        b"POST http://a/b HTTP/1.1\r\n",
        b"POST /a HTTP/1.1\r\nHost: a\r\nHost: a\r\n",
        b"POST /a HTTP/1.0\r\nHost: a\r\nHost: b\r\n",
        b"POST /a HTTP/1.1\r\nHost: a b\r\n",
        b"POST /a HTTP/1.1\r\nHost: user@a\r\n",
        b"POST /a HTTP/1.1\r\nHost: a/b\r\n",
        b"POST /a HTTP/1.1\r\nHost: \xe9\r\n",
        b"POST http:///b HTTP/1.1\r\nHost: a\r\n",
        b"POST http://user@a/b HTTP/1.1\r\nHost: a\r\n",
        b"POST ftp://a/b HTTP/1.1\r\nHost: a\r\n",
        b"POST * HTTP/1.1\r\nHost: a\r\n",
    ],
)


@UNCLEAR
async def test_a_request_without_one_clear_host_is_refused(head: bytes) -> None:
    answer, upstream = await exchanged(head)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert upstream.arrivals == 0


@UNCLEAR
async def test_so_it_is_where_the_request_before_it_had_one(head: bytes) -> None:
    """What a connection remembers of a host is that this one is valid, and no more."""
    async with serving(echo) as (reader, writer):
        writer.write(GET % b"" + GET % b"")
        for _ in range(2):
            await reader.readuntil(b"\r\n\r\n/ ")
        writer.write(head + b"\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    ("head", "line", "host"),
    [
        (b"POST /a HTTP/1.1\r\nHost: [::1]:80\r\n", "POST /a HTTP/1.1", "[::1]:80"),
        (b"POST /a HTTP/1.1\r\nHost:\r\n", "POST /a HTTP/1.1", ""),
        (b"POST http://b:81/c?d HTTP/1.1\r\nHost: a\r\n", "POST /c?d HTTP/1.1", "b:81"),
        (b"POST HTTP://b/c HTTP/1.0\r\n", "POST /c HTTP/1.1", "b"),
        (b"POST http://b HTTP/1.1\r\nHost: a\r\n", "POST / HTTP/1.1", "b"),
        (b"OPTIONS * HTTP/1.1\r\nHost: a\r\n", "OPTIONS * HTTP/1.1", "a"),
        (b"OPTIONS http://b HTTP/1.1\r\nHost: a\r\n", "OPTIONS * HTTP/1.1", "b"),
        (b"POST http://b?d HTTP/1.1\r\nHost: a\r\n", "POST /?d HTTP/1.1", "b"),
    ],
)
async def test_a_targets_own_authority_wins_over_the_header(head: bytes, line: str, host: str) -> None:
    answer, upstream = await exchanged(head)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert (upstream.requests[0].line, upstream.requests[0].value("host")) == (line, host)
    assert upstream.requests[0].value("x-forwarded-host") == host


async def test_an_old_version_may_be_without_and_gets_the_upstreams_own() -> None:
    answer, upstream = await exchanged(b"POST /a HTTP/1.0\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert upstream.requests[0].value("host") == upstream.url.removeprefix("http://")


async def test_a_caller_told_by_its_host_is_told_by_the_one_that_counts() -> None:
    key = b"Idempotency-Key: k\r\n" + CLOSE
    async with (
        Upstream(answering(OK, OK)) as upstream,
        served(upstream.url, idempotency={"scope": ["header:Host"]}) as (client, _),
    ):
        await raw(client, b"POST /a HTTP/1.1\r\nHost: tenant\r\n" + key)
        spoofed = await raw(client, b"POST http://other/a HTTP/1.1\r\nHost: tenant\r\n" + key)
        assert b"idempotent-replayed" not in spoofed
        assert upstream.arrivals == 2


@pytest.mark.parametrize("target", [b"/a?", b"/a??", b"/a", b"/a?#f", b"http://b/a?"])
async def test_an_empty_query_stays_one(target: bytes) -> None:
    answer, upstream = await exchanged(b"POST " + target + b" HTTP/1.1\r\nHost: a\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")
    expected = b"/" + target.partition(b"#")[0].rpartition(b"/")[2]
    assert upstream.requests[0].line == f"POST {expected.decode()} HTTP/1.1"


async def test_an_empty_query_is_none_to_a_fingerprint() -> None:
    key = b" HTTP/1.1\r\nHost: tenant\r\nIdempotency-Key: k\r\n" + CLOSE
    async with Upstream(answering(OK, OK)) as upstream, served(upstream.url) as (client, _):
        await raw(client, b"POST /a?" + key)
        assert b"idempotent-replayed: true" in await raw(client, b"POST /a" + key)
        assert [request.line for request in upstream.requests] == ["POST /a? HTTP/1.1"]
