"""A usual head is read by few calls; llhttp, which reads all others, finds the same in it, whatever is wrong with it.

Rules of docs/contract.md: R9.2, R9.4, R9.5.
"""

from typing import Any, cast

import httptools
import pytest

from oncegate.app.server import usual
from oncegate.app.server.connection import InboundConnection
from oncegate.app.server.parser import InboundParser
from oncegate.app.server.request import InboundRequest
from oncegate.app.server.scope import shared_scope
from oncegate.middleware.rules.keys.digests import UNKEYED
from oncegate.middleware.rules.keys.key import LastCaller
from tests.app.server.test_parser import cut

pytestmark = pytest.mark.interpreted
"""A compiled parser takes no stand-in for a connection; tests/builds compares what both builds read."""

GET = b"GET /a/%20b?c=d HTTP/1.1\r\nHost: a.example\r\nUser-Agent: x\r\nACCEPT: */*\r\nx-own:  1\t \r\n\r\n"
POST = b"POST /b HTTP/1.1\r\nHost: b\r\nConnection: keep-alive\r\nContent-Length: 3\r\nIdempotency-Key: k\r\n\r\nabc"
CLOSING = b"PUT / HTTP/1.1\r\nHost: c\r\nConnection: close\r\nContent-Length: 1\r\n\r\nd"
CHUNKED = b"POST /t HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nHost: u\r\n\r\n"
LINES_IN_PLACE = (
    b"X-A: b", b"X-A: bcd", b"x-a: b", b"X-A:b", b"X-A:  b",
    b"X-A:bcd", b"X-A:bce", b"X-A:\tbce", b"X-A: ", b"X-A: b ", b"X-A: b\0", b"X-B: d", b"X-A : b", b"X-Ab: c",
    b"Content-Length: 3", b"content-length: 3", b"Content-Length: 03", b"Content-Length: 0", b"Content-Length: x",
    b"Transfer-Encoding: chunked", b"Connection: keep-alive", b"Connection: close", b"Host: c", b"Host: a b",
    b"Expect: 100-continue", b"X-A: b\r\nX-C: d", b" folded", b"",
)  # fmt: skip
OLD = b"GET /o HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"


class Taking:
    """A connection that keeps what its parser makes of what came."""

    loop: Any = None

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def head_is_complete(self, request: InboundRequest, ends: bool) -> None:
        scope, fields = request.scope, request.fields
        self.seen.append((scope, fields, request.keep_alive, request.expects_go_ahead, request.upgrades, ends))

    def body_came(self, body: bytes) -> None:
        if self.seen and isinstance(self.seen[-1], bytes):
            self.seen[-1] += body
        else:
            self.seen.append(body)

    def request_is_whole(self) -> None:
        self.seen.append("whole")

    def came_behind(self, data: bytes) -> None:
        self.seen.append(("behind", data))


def read(reads: list[bytes], *, by_llhttp: bool = False) -> list[Any]:
    """What is made of ``reads``, up to a refusal."""
    connection = Taking()
    parser = InboundParser(cast(InboundConnection, connection))
    parser.shared = shared_scope(None, None, "http")
    parser._is_last = by_llhttp
    try:
        for data in reads:
            parser.feed(data)
    except httptools.HttpParserError as error:
        connection.seen.append(type(error).__name__)
    connection.seen.append((parser.in_message, parser.in_head))
    return connection.seen


def assert_alike(reads: list[bytes]) -> None:
    found = read(reads)
    assert found == read(reads, by_llhttp=True), reads
    for each in found:
        if isinstance(each, tuple) and isinstance(each[0], dict):
            assert each[1] == dict(each[0]["headers"])


def taken(monkeypatch: pytest.MonkeyPatch, reads: list[bytes]) -> bool:
    """Whether llhttp is given nothing of ``reads``."""
    given: list[bytes] = []
    monkeypatch.setattr(InboundParser, "_feed_llhttp", lambda _, data: given.append(data))
    read(reads)
    monkeypatch.undo()
    return not given


def test_usual_requests_are_none_of_llhttps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else all that is compared here would be llhttp's."""
    at = POST.index(b"abc")
    for reads in ([GET], [POST], [POST[:at], POST[at:]], [POST[: at + 1], POST[at + 1 :] + GET], [GET + POST + GET]):
        assert taken(monkeypatch, reads), reads
    for reads in ([CLOSING], [CHUNKED], [OLD], [GET[:-1], GET[-1:]], [GET.replace(b"Host", b"X")]):
        assert not taken(monkeypatch, reads), reads


@pytest.mark.parametrize("data", [GET, POST], ids=["GET", "POST"])
def test_each_octet_in_each_place_is_read_as_llhttp_reads_it(data: bytes) -> None:
    odd = (*range(0x21), *b'"#%:;@[\\]{|}', 0x7F, 0x80, 0xA0, 0xFF)
    for at in range(len(data)):
        for octet in odd:
            put = bytes((octet,))
            assert_alike([data[:at] + put + data[at + 1 :] + GET])
            assert_alike([data, data[:at] + put + data[at + 1 :] + GET])
            assert_alike([data + data[:at] + put + data[at:] + GET])
        assert_alike([data[:at] + data[at + 1 :] + GET])
        assert_alike([data + data[:at] + data[at + 1 :] + GET])


def test_each_octet_is_read_as_llhttp_reads_it() -> None:
    for octet in range(256):
        put = bytes((octet,))
        for place in (b"/b", b"Host: b", b"k\r\n", b"Idempotency", b"ET /", b"3\r\n"):
            for data in (GET, POST):
                assert_alike([data.replace(place, place[:1] + put + place[1:])])


@pytest.mark.parametrize(
    "line",
    [
        b"Content-Length: 3", b"Content-Length: 03", b"content-length:4", b"Content-Length: +3",
        b"Content-Length: 3, 3", b"Content-Length: 9999999999999999999999", b"Content-Length:", b"CONTENT-LENGTH : 3",
        b"Content_Length: 3", b"Transfer-Encoding: chunked", b"transfer-encoding:", b"TRANSFER-ENCODING: CHUNKED",
        b"Transfer-Encoding : chunked", b"Connection: close", b"CONNECTION: Close", b"Connection: keep-alive",
        b"connection: Keep-Alive, x", b"Proxy-Connection: close", b"Upgrade: h2c", b"UPGRADE: websocket",
        b"Expect: 100-continue", b"EXPECT: 100-Continue", b"Host: b", b"HOST: c", b"host:", b"Host: a b",
        b"Host: u@a", b"X: 1", b"x: 2", b"X:", b": x", b"X", b" X: 1", b"\tX: 1", b"X : 1", b"X: \xff", b"X: a\0b",
        b"X: a\rb", b"X: a\nb", b"X: a\n b", b"X: a\r", b"\rX: a", b"Accept: a", b"accept: b", b"accept: a\x0bb",
    ],
)  # fmt: skip
def test_each_line_is_read_as_llhttp_reads_it(line: bytes) -> None:
    for data in (GET, POST):
        for behind in (b"\r\nHost: ", b"\r\n\r\n"):
            whole = data.replace(behind, b"\r\n" + line + behind, 1)
            for requests in ((whole, whole, data), (data, whole + GET), (GET, whole + POST, whole)):
                assert_alike([*requests])
                assert_alike([*requests])  # once more: lines are kept


@pytest.mark.parametrize(
    "target", [b"*", b"/%", b"/%%" + b"%" * 1001, b"/?", b"/a?b?c", b"/a#b", b"//x", b"http://a/b", b"a", b"/\xe9", b"/ ", b""]
)  # fmt: skip
def test_each_target_is_read_as_llhttp_reads_it(target: bytes) -> None:
    for method in (b"GET", b"OPTIONS", b"CONNECT", b"QUERY", b"get", b"X"):
        for version in (b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"http/1.1", b"RTSP/1.0", b""):
            assert_alike([method + b" " + target + b" " + version + b"\r\nHost: a\r\n\r\n" + GET])


def test_requests_are_the_same_however_they_are_cut() -> None:
    for data in (GET + POST + GET, POST + CHUNKED + POST, CLOSING + GET, OLD + GET + POST):
        whole = read([data], by_llhttp=True)
        for reads in cut(data):
            assert read(reads) == whole, reads
            assert_alike(reads)


@pytest.mark.parametrize("second", LINES_IN_PLACE)
@pytest.mark.parametrize("first", LINES_IN_PLACE)
def test_a_line_in_the_place_of_another_is_read_anew(first: bytes, second: bytes) -> None:
    """A line is compared with the one that stood there in the request before."""
    heads = [b"POST /a HTTP/1.1\r\nHost: a\r\n%b\r\nX-B: c\r\n\r\n" % line for line in (first, second)]
    bodies = [b"abc" if b": 3" in line.lower() else b"" for line in (first, second)]
    one, other = (head + body for head, body in zip(heads, bodies, strict=True))
    for reads in ([one, other, one], [one + other + one + other], [one, heads[1], bodies[1], one]):
        assert_alike([each for each in reads if each])
    assert_alike([one, other.replace(b"X-B", b"X-A"), one.replace(b"/a", b"/b"), other.replace(b"POST", b"PUT")])


def test_what_llhttp_ignores_behind_the_last_request_is_no_request() -> None:
    for reads in ([CLOSING, GET], [CLOSING + GET], [OLD.replace(b"keep-alive", b"close"), GET]):
        seen = read(reads)
        assert seen.count("whole") == 1, reads
        assert_alike(reads)


def test_what_is_kept_of_lines_is_bounded_and_no_credential() -> None:
    kept, targets = usual._kept, usual._targets
    for number in range(3000):
        head = b"GET /%d HTTP/1.1\r\nHost: a%d\r\nUser-Agent: %d\r\n" % (number, number, number)
        secrets = b"Authorization: Bearer s%d\r\nCookie: s%d\r\nX-Api-Key: s%d\r\nIdempotency-Key: k%d\r\n\r\n"
        assert read([head + secrets % ((number,) * 4)])[-2] == "whole"
        assert len(kept) <= 1000
        assert len(targets) <= 1000
    names = {field[0] for field in kept.values()}
    assert {b"host", b"user-agent"} <= names
    assert not names & {b"authorization", b"cookie", b"x-api-key", b"idempotency-key"}
    read([b"GET / HTTP/1.1\r\nHost: a\r\nUser-Agent: " + b"x" * 1000 + b"\r\n\r\n"])
    assert max(map(len, kept)) <= 256


@pytest.mark.parametrize("data", [GET, POST], ids=["GET", "POST"])
def test_whatever_is_cut_or_put_into_a_head_like_two_before_it_is_read_as_llhttp_reads_it(data: bytes) -> None:
    """Of such a head nothing is read but what varied in those two."""
    varied = data.replace(b"x-own:  1", b"x-own:  22").replace(b"-Key: k", b"-Key: other").replace(b" /b", b" /bcd")
    longer = data.replace(b"User-Agent: x", b"User-Agent: y").replace(b": 3", b": 5").replace(b"abc", b"abcde")
    assert varied != data != longer
    for before in (varied, longer):
        for at in range(len(data) + 1):
            assert_alike([each for each in (before, data, before, data[:at], data[at:] + GET) if each])
            for put in (b"", b"\r", b"\n", b"\r\n", b" ", b":", b"\0", b"A"):
                assert_alike([before, data, data[:at] + put + data[at + 1 :] + GET])
                assert_alike([before, data, before, data[:at] + put + data[at:] + GET])


def test_a_request_keeps_its_fields_while_those_behind_it_are_read() -> None:
    heads = [b"GET / HTTP/1.1\r\nHost: a\r\nX-A: %d\r\n\r\n" % number for number in range(4)]
    seen = [each for each in read([heads[0], b"".join(heads[1:])]) if each != "whole"]
    assert [fields[b"x-a"] for _, fields, *_ in seen[:-1]] == [b"0", b"1", b"2", b"3"]
    assert [scope["headers"][1][1] for scope, *_ in seen[:-1]] == [b"0", b"1", b"2", b"3"]


def callers(*reads: bytes) -> list[LastCaller | None]:
    """What each request was given of its connection's last caller. Each is judged once its bytes are read."""
    given: list[LastCaller | None] = []

    class Judging(Taking):
        def head_is_complete(self, request: InboundRequest, ends: bool) -> None:
            super().head_is_complete(request, ends)
            given.append(request.caller)

    parser = InboundParser(cast(InboundConnection, Judging()))
    parser.shared = shared_scope(None, None, "http")
    for data in reads:
        parser.feed(data)
        caller = given[-1]
        if caller is not None:
            caller.digest([b"authorization", b"1", parser._usual.fields[b"authorization"]], UNKEYED)
    return given


def test_a_credential_is_kept_no_longer_than_the_head_that_it_came_in() -> None:
    lines = b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nAuthorization: %b\r\nIdempotency-Key: %b\r\n\r\n"
    one, again, other = (lines % each for each in ((b"/", b"a", b"k"), (b"/b", b"a", b"l"), (b"/", b"b", b"l")))
    unlike = other.replace(b"Host: a\r\n", b"Host: a\r\nX-A: b\r\n")
    found = callers(one, again, one, again, other, one, unlike, one)
    assert all(found)
    first, second, third, fourth, *others = found
    assert second is not first, "all lines were read"
    assert second is third is fourth
    assert len({id(each) for each in (fourth, *others)}) == 5
    assert [each and each.scope[2] for each in (fourth, *others)] == [b"a", b"b", b"a", b"b", b"a"]


def test_a_request_before_another_one_in_what_was_read_is_given_none() -> None:
    """It is judged when the other one's head is read already."""
    head = POST[: POST.index(b"\r\n\r\n")] + b"\r\nAuthorization: a\r\n\r\n"
    assert [each is None for each in callers(head + b"abc" + head + b"abc", head + b"a", b"bc")] == [True, False, True]


def test_none_is_given_to_what_llhttp_has_read() -> None:
    assert callers(CLOSING) == [None]
