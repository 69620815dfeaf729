"""A usual response is read without the parser, and what the parser would make of it: it is asked by cutting the head in two.

Rules of docs/contract.md: R9.23.
"""

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from oncegate.app.upstream.response import ResponseReader
from oncegate.app.upstream.response_head import KEPT
from oncegate.cache.fields import MOST_RECURRING

USUAL = (
    b"HTTP/1.1 201 Created\r\nServer: s\r\nDate: Thu, 26 Nov 2026 12:00:00 GMT\r\nset-cookie: a=1\r\nSet-Cookie:\tb=2 \t\r\n"
    b"Connection: keep-alive\r\nKeep-Alive: timeout=5\r\nX-Empty:\r\nContent-Length: 3\r\n\r\nabc"
)
SENT = b"".join(
    b"\r\n" + line
    for line in (
        b"server: s",
        b"date: Thu, 26 Nov 2026 12:00:00 GMT",
        b"set-cookie: a=1",
        b"set-cookie: b=2",
        b"x-empty: ",
        b"content-length: 3",
    )
)
STATUSES = [b"HTTP/1.1 200 OK", b"HTTP/1.1 404 Not Found", b"HTTP/1.1 204 No Content", b"HTTP/1.1 304 Not Modified"]
STATUSES += [b"HTTP/1.0 200 OK", b"HTTP/1.1 200 ok", b"HTTP/1.1 200", b"HTTP/1.1  200 OK", b"\r\nHTTP/1.1 200 OK"]
STATUSES += [b"HTTP/1.1 100 Continue", b"HTTP/1.1 101 Switching Protocols", b"RTSP/1.0 200 OK", b"HTTP/2.0 200 OK"]
LINES = [b"Server: s", b"date:d", b"X-A: \tb ", b"x-a:", b"Set-Cookie: a: b", b"via: \xff", b"Content-Type: a/b"]
LINES += [
    b"Connection: keep-alive",
    b"Connection:Keep-Alive",
    b"connection: close",
    b"Connection: x-a",
    b"Connection: server",
]
LINES += [
    b"Keep-Alive: timeout=5",
    b"Keep-Alive: x",
    b"Proxy-Connection: close",
    b"Upgrade: h2c",
    b"TE: trailers",
    b"trailer: a",
]
MALFORMED = [
    b"",
    b" folded",
    b"\tfolded: a",
    b"X-A : b",
    b"no colon",
    b": no name",
    b"X-A: a\rb",
    b"X-A: a\nb",
    b"X-A: \0",
]
MALFORMED += [b"X-A: \x7f", b"X\xff: a", b"X A: b", b"X-A: a\r"]
FRAMINGS = [
    b"Content-Length: 3",
    b"content-length:3 \t",
    b"Content-Length: 0",
    b"Content-Length: 2",
    b"Content-Length: 5",
]
FRAMINGS += [
    b"Content-Length: 03",
    b"Content-Length: +3",
    b"Content-Length: 3,3",
    b"Content-Length:",
    b"Content-Length: 0x3",
]
FRAMINGS += [
    b"Content-Length: 99999999999999999999",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: gzip",
    b"Content_Length: 3",
]
BEHIND = [b"", b"abc", b"abc\r\n", b"abcHTTP/1.1 200 OK\r\n\r\n", b"ab", b"3\r\nabc\r\n0\r\n\r\n"]


def found(reader: ResponseReader, pieces: list[bytes]) -> list[object]:
    """What it says of a response that comes in these pieces."""
    reader.expect(is_head=False)
    for piece in pieces:
        reader.feed(piece)
    head = reader.head
    result: list[object] = [reader.status, reader.complete, reader.failure is None, reader.surplus, reader.take()]
    if reader.status:
        result += [reader.persistent, reader.headers, head.sent, head.has_date, head.idle_timeout, reader.is_bodiless]
    return result


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    status=st.sampled_from(STATUSES[:2] * 6 + STATUSES),
    lines=st.lists(st.sampled_from(LINES * 2 + MALFORMED), max_size=4),
    framing=st.lists(st.sampled_from(FRAMINGS), min_size=1, max_size=2)
    | st.sampled_from([[each] for each in FRAMINGS]),
    behind=st.sampled_from(BEHIND),
)
@example(STATUSES[0], [], [b"Content-Length: 3", b"Content-Length: 3"], b"abc")
@example(STATUSES[0], [], [b"Content-Length: 3", b"Transfer-Encoding: chunked"], b"abc")
@example(STATUSES[0], [b"X-A : b"], [b"Content-Length: 3"], b"abc")
@example(STATUSES[0], [], [b"Content-Length: 3"], b"abcHTTP/1.1 200 OK\r\n\r\n")
def test_the_parser_finds_the_same_in_a_head_that_is_read_without_it(
    status: bytes, lines: list[bytes], framing: list[bytes], behind: bytes
) -> None:
    raw = b"\r\n".join([status, *lines, *framing]) + b"\r\n\r\n" + behind
    parsed = found(ResponseReader(), [raw[:3], raw[3:]])
    reader = ResponseReader()
    assert found(reader, [raw]) == parsed
    if reader.complete and reader.persistent and not reader.surplus:
        assert found(reader, [raw]) == parsed, "once more on the same connection"
        assert found(reader, [raw[:3], raw[3:]]) == parsed, "and by the parser, after it"


def test_a_usual_response_is_read_however_it_was_cut() -> None:
    for at in range(1, len(USUAL)):
        reader = ResponseReader()
        for _ in range(2):
            whole = found(reader, [USUAL])
            assert found(reader, [USUAL[:at], USUAL[at:]]) == whole, at
        assert whole[:5] == [201, True, True, False, b"abc"]
        assert (reader.head.sent, reader.head.idle_timeout, reader.persistent) == (SENT, 5.0, True)
    in_bytes = [USUAL[at : at + 1] for at in range(len(USUAL))]
    assert found(ResponseReader(), in_bytes) == whole


def test_a_head_like_the_one_before_is_no_other_one_s() -> None:
    reader = ResponseReader()
    other = USUAL.replace(b"a=1", b"c=3").replace(b"abc", b"def")
    interim = b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n"
    close = USUAL.replace(b"keep-alive", b"close     ")
    for raw, sent, body in [
        (USUAL, SENT, b"abc"),
        (USUAL.replace(b"abc", b"def"), SENT, b"def"),
        (other, SENT.replace(b"a=1", b"c=3"), b"def"),
        (USUAL, SENT, b"abc"),
        (interim + other, SENT.replace(b"a=1", b"c=3"), b"def"),
        (USUAL, SENT, b"abc"),
        (close, SENT, b"abc"),
    ]:
        assert found(reader, [raw])[4] == body
        assert reader.head.sent == sent
        assert reader.persistent is (raw is not close)


@pytest.mark.parametrize("behind", [b"x", b"HTTP/1.1 200 OK\r\n\r\n"])
@pytest.mark.parametrize("size", [0, 1, 3])
def test_bytes_behind_a_usual_response_are_surplus(behind: bytes, size: int) -> None:
    """``size`` bytes of its body come with its head."""
    reader = ResponseReader()
    end = len(USUAL) - 3 + size
    found(reader, [USUAL[:end], USUAL[end:] + behind])
    assert (reader.complete, reader.surplus) == (True, True)


@pytest.mark.parametrize("size", [0, 1])
def test_a_usual_response_that_is_cut_off_is_no_whole_one(size: int) -> None:
    reader = ResponseReader()
    found(reader, [USUAL[: len(USUAL) - 3 + size]])
    reader.feed_eof()
    assert not reader.complete
    assert reader.failure == "the connection was closed in the middle of the response"


def test_no_response_of_another_protocol_is_read_behind_an_empty_line_or_an_interim_response() -> None:
    for before in ([b"\r\n"], [b"HTTP/1.1 100 Continue\r\n\r\n"]):
        reader = ResponseReader()
        found(reader, [*before, b"RTSP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"])
        assert reader.failure == "malformed response (it is no answer of HTTP/1)"


def test_lines_are_kept_in_bounds_and_none_that_is_a_secret() -> None:
    reader = ResponseReader()
    for number in range(2 * MOST_RECURRING):
        date = b"Date: %d\r\nSet-Cookie: secret=%d\r\nX-Token: secret=%d\r\n" % (number, number, number)
        found(reader, [b"HTTP/1.1 200 OK\r\nVary: " + b"v" * 400 + b"\r\n" + date + b"Content-Length: 0\r\n\r\n"])
        assert (reader.complete, reader.failure) == (True, None)
    assert 0 < len(KEPT) <= MOST_RECURRING
    assert not any(b"secret" in line or len(line) > 300 for line in KEPT)
