"""Framing, both ways: what is ambiguous is refused, what is valid means the same however it was cut into pieces.

Rules of docs/contract.md: R3.18, R9.2, R9.9, R9.23.
"""

import asyncio
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oncegate.app.http1 import RequestRefused, RequestWriter, TrustedPeers
from oncegate.app.upstream.forward import Forwarder
from oncegate.app.upstream.response import MAX_FIELDS, MAX_HEAD_BYTES, ResponseReader
from oncegate.middleware.outcome.errors import OutcomeUnknown
from testing.asgi_client import HOST, Client
from testing.upstreams import OK, PATIENCE, Behaviour, Peer, Upstream, answering, closing_after
from tests.app.forwarding import forwarding

pytestmark = pytest.mark.both_loops

# Requests


@pytest.mark.parametrize(
    "path", [b"/a b", b"/a\r\nX: y", b"/a\0", b"/a?b", b"/a#b", b"/\x7f", b"a", b"http://x/", b"*"]
)
async def test_a_target_that_does_not_fit_a_request_line_is_refused(path: bytes) -> None:
    await refused(Client(path=path), 400)


@pytest.mark.parametrize(
    ("fields", "body"),
    [
        ([HOST], b""),
        ([HOST], b"ab"),
        ([HOST, (b"content-length", b"2")], b"ab"),
        ([HOST, (b"content-length", b"0")], b""),
        ([HOST, (b"transfer-encoding", b"chunked")], b""),
        ([HOST, (b"connection", b"x-a"), (b"x-a", b"b")], b"ab"),
    ],
)
def test_a_head_is_the_same_with_its_whole_body_and_before_it(fields: list[tuple[bytes, bytes]], body: bytes) -> None:
    writer = RequestWriter(b"/base", b"upstream", TrustedPeers([]))
    scope = {"method": "POST", "path": "/", "raw_path": b"/", "client": ("a", 1), "headers": fields}
    assert writer.whole(scope, fields, body) == writer.head(scope).framed(body, False)
    with pytest.raises(RequestRefused, match="not as long as its Content-Length"):
        writer.whole(scope, [HOST, (b"content-length", b"%d" % (len(body) + 1))], body)


@pytest.mark.parametrize("query", [b"a b", b"a\nb", b"a#b"])
async def test_a_query_that_does_not_fit_a_request_line_is_refused(query: bytes) -> None:
    await refused(Client(query_string=query), 400)


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ([(b"content-length", b"2"), (b"content-length", b"3")], 400),
        ([(b"content-length", b"2"), (b"content-length", b"2")], 400),
        ([(b"content-length", b"2, 2")], 400),
        ([(b"content-length", b"+2")], 400),
        ([(b"content-length", b"-2")], 400),
        ([(b"content-length", b"0x2")], 400),
        ([(b"content-length", b"")], 400),
        ([(b"content-length", b"\xb2")], 400),
        ([(b"content-length", b"9" * 5000)], 400),
        ([(b"content-length", b"2"), (b"transfer-encoding", b"chunked")], 400),
        ([(b"transfer-encoding", b"chunked"), (b"content-length", b"2")], 400),
        ([(b"transfer-encoding", b"chunked"), (b"transfer-encoding", b"chunked")], 400),
        ([(b"transfer-encoding", b"chunked, identity")], 501),
        ([(b"transfer-encoding", b"gzip, chunked")], 501),
        ([(b"transfer-encoding", b"\x0bchunked")], 501),
        ([(b"transfer-encoding", b"")], 501),
        ([HOST], 400),
        ([(b"x-a", b"1\r\nContent-Length: 9")], 400),
        ([(b"x-a", b"1\nx: y")], 400),
        ([(b"x-a", b"1\rx: y")], 400),
        ([(b"x-a", b"1\0")], 400),
    ],
)
async def test_ambiguous_requests_are_refused_and_nothing_is_sent(
    fields: list[tuple[bytes, bytes]], status: int
) -> None:
    await refused(Client("POST", headers=fields, pieces=[b"ab"]), status)


@pytest.mark.parametrize("length", [b"1", b"3"])
async def test_a_whole_body_of_another_length_is_refused(length: bytes) -> None:
    await refused(Client("POST", headers=[(b"content-length", length)], pieces=[b"ab"]), 400)


@pytest.mark.parametrize("method", ["GE T", "GET\r\n", "", "CONNECT"])
async def test_a_method_that_cannot_be_forwarded_is_refused(method: str) -> None:
    await refused(Client(method), 501 if method == "CONNECT" else 400)


async def refused(client: Client, status: int) -> None:
    async with Upstream(answering(OK)) as upstream:
        await client.call(Forwarder(upstream.url))
        assert (client.status, client.done, upstream.connections) == (status, True, 0)


# Responses


def head(*lines: bytes, status: bytes = b"HTTP/1.1 200 OK") -> bytes:
    return b"\r\n".join([status, *lines, b"", b""])


TWO = b"content-length: 2"
CHUNKED = b"transfer-encoding: chunked"
MALFORMED = {
    "RTSP": head(TWO, status=b"RTSP/1.0 200 OK") + b"ab",
    "ICE": head(TWO, status=b"ICE/1.0 200 OK") + b"ab",
    "ICY": head(TWO, status=b"ICY 200 OK") + b"ab",
    "HTTP/9.9": head(TWO, status=b"HTTP/9.9 200 OK") + b"ab",
    "no protocol": head(TWO, status=b"200 OK") + b"ab",
    "CL.CL": head(TWO, b"content-length: 3") + b"abc",
    "CL.CL, the same": head(TWO, TWO) + b"ab",
    "CL list": head(b"content-length: 2, 2") + b"ab",
    "CL signed": head(b"content-length: +2") + b"ab",
    "CL negative": head(b"content-length: -2") + b"ab",
    "CL hexadecimal": head(b"content-length: 0x2") + b"ab",
    "CL too large": head(b"content-length: " + b"9" * 30) + b"ab",
    "CL empty": head(b"content-length:") + b"ab",
    "CL.TE": head(TWO, CHUNKED) + b"0\r\n\r\n",
    "TE.CL": head(CHUNKED, TWO) + b"0\r\n\r\n",
    "TE.TE": head(CHUNKED, CHUNKED) + b"0\r\n\r\n",
    "TE unknown": head(b"transfer-encoding: gzip, chunked") + b"0\r\n\r\n",
    "TE identity": head(b"transfer-encoding: identity") + b"ab",
    "TE in disguise": head(b"transfer-encoding: xchunked") + b"ab",
    "TE with a space before the colon": head(b"transfer-encoding : chunked") + b"0\r\n\r\n",
    "TE over HTTP/1.0": head(CHUNKED, status=b"HTTP/1.0 200 OK") + b"0\r\n\r\n",
    "obs-fold": head(b"x-a: 1", b" 2", TWO) + b"ab",
    "obs-fold by tab": head(b"x-a: 1", b"\t2", TWO) + b"ab",
    "bare LF": head(b"x-a: 1\nx-b: 2", TWO) + b"ab",
    "bare LF after the status": b"HTTP/1.1 200 OK\ncontent-length: 2\r\n\r\nab",
    "bare CR": head(b"x-a: 1\rx-b: 2", TWO) + b"ab",
    "NUL": head(b"x-a: 1\0", TWO) + b"ab",
    "control character": head(b"x-a: \x01", TWO) + b"ab",
    "field without a name": head(b": 1", TWO) + b"ab",
    "field without a colon": head(b"nonsense", TWO) + b"ab",
    "space in a name": head(b"x a: 1", TWO) + b"ab",
    "garbage before": b"garbage\r\n" + OK,
    "another protocol": b"SSH-2.0-OpenSSH_9.2\r\n",
    "TLS": b"\x15\x03\x01\x00\x02\x02\x46",
    "version 2": head(TWO, status=b"HTTP/2.0 200 OK") + b"ab",
    "version 1.2": head(TWO, status=b"HTTP/1.2 200 OK") + b"ab",
    "status 99": head(TWO, status=b"HTTP/1.1 099 No") + b"ab",
    "status 600": head(TWO, status=b"HTTP/1.1 600 No") + b"ab",
    "status of four digits": head(TWO, status=b"HTTP/1.1 2000 No") + b"ab",
    "upgrade": head(b"connection: upgrade", b"upgrade: websocket", status=b"HTTP/1.1 101 Switching"),
    "upgrade without a field": head(status=b"HTTP/1.1 101 Switching"),
    "interim with a body": head(TWO, status=b"HTTP/1.1 100 Continue") + b"ab" + OK,
    "surplus": OK + b"x",
    "a second response": OK + OK,
    "too many fields": head(*[b"x: y"] * (MAX_FIELDS + 1), TWO) + b"ab",
    "too long a field": head(b"x: " + b"y" * MAX_HEAD_BYTES, TWO) + b"ab",
    "too many interim responses": head(b"x: " + b"y" * 900, status=b"HTTP/1.1 103 Hints") * 80 + OK,
    "nothing": b"",
    "half a head": b"HTTP/1.1 200 OK\r\ncontent-le",
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_a_malformed_response_is_an_unknown_outcome_and_reaches_nobody(name: str) -> None:
    async with forwarding(closing_after(MALFORMED[name])) as (_, forwarder):
        client = Client()
        with pytest.raises(OutcomeUnknown) as raised:
            await client.call(forwarder)
        assert "\n" not in str(raised.value)
        assert (client.messages, forwarder.upstream.idle) == ([], 0)


def begun(client: Client, first: bytes, rest: bytes) -> Behaviour:
    """Answers one request, with ``rest`` only when ``client`` has been shown ``first``, and closes."""

    async def behave(peer: Peer) -> None:
        await peer.request()
        await peer.send(first)
        await client.started.wait()
        await peer.send(rest)

    return behave


CUT_OFF = {
    "shorter than its length": head(b"content-length: 5") + b"abc",
    "without the last chunk": head(CHUNKED) + b"3\r\nabc\r\n",
    "in a chunk": head(CHUNKED) + b"5\r\nabc",
    "without the end of its trailers": head(CHUNKED) + b"3\r\nabc\r\n0\r\nX: y\r\n",
    "a chunk longer than its size": head(CHUNKED) + b"3\r\nabcd\r\n0\r\n\r\n",
    "a chunk size that is none": head(CHUNKED) + b"3\r\nabc\r\n-1\r\nx\r\n0\r\n\r\n",
    "a chunk size that overflows": head(CHUNKED) + b"3\r\nabc\r\nfffffffffffffffff\r\nx\r\n0\r\n\r\n",
    "a chunk that ends with a bare LF": head(CHUNKED) + b"3\r\nabc\r\n1\na\r\n0\r\n\r\n",
    "endless trailers": head(CHUNKED) + b"3\r\nabc\r\n0\r\n" + b"X: yyyyyyyyyyyyy\r\n" * 40000,
}


@pytest.mark.parametrize("name", CUT_OFF)
async def test_a_response_that_breaks_off_never_ends_cleanly(name: str) -> None:
    split = CUT_OFF[name].index(b"abc") + 3
    client = Client()
    async with forwarding(begun(client, CUT_OFF[name][:split], CUT_OFF[name][split:])) as (_, forwarder):
        with pytest.raises(OutcomeUnknown):
            await client.call(forwarder)
        assert (client.status, client.done, forwarder.upstream.idle) == (200, False, 0)
        assert client.body.startswith(b"abc")


async def test_bytes_behind_a_response_that_was_begun_cost_the_connection_only() -> None:
    client = Client()
    async with forwarding([begun(client, head(TWO) + b"a", b"bx"), answering(OK)]) as (upstream, forwarder):
        await client.call(forwarder)
        assert (client.body, client.done) == (b"ab", True)
        assert (await Client().call(forwarder)).body == b"ok"
        assert upstream.connections == 2


# However it is cut into pieces

BODIES = st.binary(max_size=300)
TOKENS = st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=12).map(lambda name: b"x-" + name.encode())
VALUES = st.binary(max_size=30).map(lambda raw: bytes(byte for byte in raw if byte >= 0x20 and byte != 0x7F).strip())


@st.composite
def responses(draw: st.DrawFn) -> tuple[bytes, list[tuple[bytes, bytes]], bytes, bool]:
    """A valid response: its bytes, the fields and the body that they mean, and whether only the stream's end completes it."""
    fields = draw(st.lists(st.tuples(TOKENS, VALUES), max_size=6))
    body = draw(BODIES)
    lines = [name + b": " + value for name, value in fields]
    framing = draw(st.sampled_from(["length", "chunked", "until the end"]))
    interim = head(b"link: x", status=b"HTTP/1.1 103 Hints") * draw(st.integers(0, 2))
    if framing == "length":
        length = (b"content-length", b"%d" % len(body))
        return interim + head(*lines, b": ".join(length)) + body, [*fields, length], body, False
    if framing == "until the end":
        return interim + head(*lines) + body, fields, body, True
    cuts = sorted(draw(st.sets(st.integers(0, len(body)), max_size=4)) | {0, len(body)})
    chunks = [body[start:end] for start, end in pairwise(cuts) if start < end]
    extension = draw(st.sampled_from([b"", b";a", b';a="b"']))
    coded = b"".join(b"%x%b\r\n%b\r\n" % (len(chunk), extension, chunk) for chunk in chunks)
    trailer = draw(st.sampled_from([b"", b"x-trailer: 1\r\n"]))
    return interim + head(*lines, CHUNKED) + coded + b"0\r\n" + trailer + b"\r\n", fields, body, False


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine's, not ours
@given(response=responses(), cuts=st.lists(st.integers(0, 1200), max_size=20))
def test_the_same_response_comes_out_however_it_was_cut(
    response: tuple[bytes, list[tuple[bytes, bytes]], bytes, bool], cuts: list[int]
) -> None:
    raw, fields, body, until_end = response
    reader = ResponseReader()
    places = [0, *sorted(min(cut, len(raw)) for cut in cuts), len(raw)]
    taken = b""
    for start, end in pairwise(places):
        if start < end:
            reader.feed(raw[start:end])
        if reader.status:
            taken += reader.take()
    assert reader.complete is not until_end
    if until_end:
        reader.feed_eof()
        taken += reader.take()
    assert (reader.failure, reader.complete, reader.surplus, reader.persistent) == (None, True, False, not until_end)
    assert (reader.status, reader.headers, taken) == (200, fields, body)


HEADS = [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 C\r\n", b"HTTP/1.0 204 N\r\n"]
FIELDS = [b"content-length: 3\r\n", b"transfer-encoding: chunked\r\n", b"connection: close\r\n"]
REST = [b"\r\n", b"\r\n\r\n", b"3\r\nabc\r\n", b"0\r\n", b"\n", b" ", b":", b"\0", b"abc"]
PARTS = st.sampled_from(HEADS + FIELDS + REST)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(pieces=st.lists(PARTS | st.binary(max_size=20), max_size=12), method=st.sampled_from(["GET", "HEAD", "POST"]))
def test_whatever_the_upstream_says_is_a_response_or_an_unknown_outcome(pieces: list[bytes], method: str) -> None:
    async def run() -> None:
        async with forwarding(closing_after(b"".join(pieces))) as (_, forwarder):
            client = Client(method)
            try:
                await asyncio.wait_for(client.call(forwarder), PATIENCE)
            except OutcomeUnknown:
                assert not client.done
            else:
                assert client.done
                assert 200 <= client.status <= 599

    asyncio.run(run())
