"""A reader takes one response after the other: what one says must not change how the next one, another caller's, is read."""

from itertools import pairwise
from operator import attrgetter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oncegate.app.upstream.response import ResponseReader
from testing.upstreams import OK
from tests.builds.http import PROPERTIES

NEXT = [
    OK,
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    b"HTTP/1.1 204 N\r\nx-a: b\r\n\r\n",
]
BODIES = {
    b"": b"",
    b"content-length: 0\r\n": b"",
    b"content-length: 3\r\n": b"abc",
    b"transfer-encoding: chunked\r\n": b"3\r\nabc\r\n0\r\n\r\n",
    b"Transfer-Encoding: chunked\r\ntrailer: x-t\r\n": b"3;a=b\r\nabc\r\n0\r\nx-t: 1\r\nconnection: close\r\nx-empty:\r\n\r\n",
}
FIELDS = [
    name + value
    for name in (b"connection: ", b"proxy-connection: ", b"Connection:")
    for value in (
        b"close",
        b"keep-alive",
        b"Upgrade",
        b"upgrade, keep-alive",
        b"close, upgrade",
        b"x-a",
        b"",
        b"closed",
        b" close ",
    )
] + [
    b"upgrade: h2c",
    b"Upgrade: websocket",
    b"keep-alive: timeout=5",
    b"x-empty:",
    b"x-a: b",
    b"date: x",
    b"trailer: x-t",
]
LINES = [
    b"HTTP/%b %d X" % (version, status) for version in (b"1.1", b"1.0") for status in (200, 204, 205, 304, 404, 500)
]
INTERIM = [b"HTTP/%b %d X" % (version, status) for version in (b"1.1", b"1.0") for status in (100, 102, 103, 104, 199)]


def heads(lines: list[bytes]) -> st.SearchStrategy[bytes]:
    """Heads without the empty line at their end, that announce no body."""
    fields = st.lists(st.sampled_from(FIELDS), max_size=4)
    return st.builds(lambda line, more: b"\r\n".join([line, *more]) + b"\r\n", st.sampled_from(lines), fields)


def state(reader: ResponseReader) -> list[object]:
    return [*(attrgetter(name)(reader) for name in PROPERTIES), reader.take()]


def fed(reader: ResponseReader, raw: bytes, cuts: list[int]) -> None:
    for start, end in pairwise([0, *sorted(min(cut, len(raw)) for cut in cuts), len(raw)]):
        if start < end:
            reader.feed(raw[start:end])


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    interim=st.lists(heads(INTERIM), max_size=2),
    head=heads(LINES),
    framing=st.sampled_from(list(BODIES)),
    is_head=st.booleans(),
    with_body=st.booleans(),
    cuts=st.lists(st.integers(0, 400), max_size=4),
    following=st.sampled_from(NEXT),
)
def test_what_a_response_said_does_not_change_how_the_next_one_is_read(
    interim: list[bytes], head: bytes, framing: bytes, is_head: bool, with_body: bool, cuts: list[int], following: bytes
) -> None:
    without = is_head or b" 204 " in head or b" 304 " in head
    body = b"" if without and not with_body else BODIES[framing]
    reader = ResponseReader()
    reader.expect(is_head=is_head)
    fed(reader, b"".join(each + b"\r\n" for each in [*interim, head + framing]) + body, cuts)
    if reader.failure is None:
        assert reader.status == int(head[9:12])
    if not (reader.complete and reader.persistent and not reader.surplus and reader.failure is None):
        return  # its connection is closed
    fresh = ResponseReader()
    for each in (reader, fresh):
        each.take()
        each.expect(is_head=False)
        each.feed(following)
    assert state(reader) == state(fresh)
    assert fresh.complete


@pytest.mark.parametrize("field", [b"proxy-connection: close", b"Proxy-Connection: keep-alive, Close"])
def test_what_only_the_parser_takes_for_a_close_ends_the_connection(field: bytes) -> None:
    reader = ResponseReader()
    reader.feed(OK.replace(b"\r\n\r\n", b"\r\n" + field + b"\r\n\r\n"))
    assert (reader.complete, reader.failure, reader.persistent) == (True, None, False)


@pytest.mark.parametrize(
    "interim",
    [
        b"HTTP/1.1 103 Hints\r\nconnection: close\r\n\r\n",
        b"HTTP/1.0 100 C\r\n\r\n",
        b"HTTP/1.1 100 C\r\nproxy-connection: close\r\n\r\n",
    ],
)
def test_a_close_in_an_interim_response_counts_after_the_final_one(interim: bytes) -> None:
    reader = ResponseReader()
    reader.feed(interim + OK)
    assert (reader.status, reader.complete, reader.failure, reader.take()) == (200, True, None, b"ok")
    assert not reader.persistent


@pytest.mark.parametrize(
    ("is_head", "line"), [(True, b"200 OK"), (False, b"204 None"), (False, b"304 Same")], ids=["HEAD", "204", "304"]
)
@pytest.mark.parametrize("together", [True, False], ids=["in one piece", "behind the head"])
def test_a_body_that_must_not_be_there_is_dropped_with_its_connection(
    is_head: bool, line: bytes, together: bool
) -> None:
    reader = ResponseReader()
    reader.expect(is_head=is_head)
    head = b"HTTP/1.1 " + line + b"\r\ncontent-length: 2\r\n\r\n"
    for piece in [head + b"ab"] if together else [head, b"ab"]:
        reader.feed(piece)
    assert (reader.status, reader.complete, reader.failure, reader.surplus) == (int(line[:3]), True, None, False)
    assert (reader.persistent, reader.take()) == (False, b"")
