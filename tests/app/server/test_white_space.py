"""RFC 9110 section 5.5: white space around a field's value is no part of it, whoever sends it and whoever reads it.

Rules of docs/contract.md: R2.13.
"""

import pytest

from oncegate.app.upstream.response import ResponseReader
from testing.served import raw, served
from testing.upstreams import OK, Upstream, answering
from tests.app.fast_path import CREATED, by_path, gateway_at

BLANKS = (b"", b" ", b"\t", b" \t ", b"\t\t  ")
REQUEST = b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 2\r\n%b\r\n{}"


@pytest.mark.parametrize("fast_path", [True, False])
async def test_one_caller_with_one_key_executes_once_however_its_fields_are_spaced(fast_path: bool) -> None:
    async with Upstream(by_path({})) as upstream, gateway_at(upstream.url, fast_path=fast_path) as (talk, _, _):
        answers = []
        for before in BLANKS:
            for after in BLANKS:
                fields = b"Authorization:%bBearer x%b\r\nIdempotency-Key:%b k%b\r\n" % (before, after, before, after)
                request = REQUEST.replace(b"Connection: close\r\n", b"") % fields
                answers.append(await talk.exchange(request))
        assert len(upstream.requests) == 1
        assert answers[0].endswith(b"{}")
        assert all(b"idempotent-replayed: true" in answer for answer in answers[1:])
        assert all(b"\r\nidempotency-key: k\r\n" in answer for answer in answers), (
            "echoed without what is no part of it"
        )


async def test_no_field_goes_upstream_with_white_space_around_its_value() -> None:
    fields = (
        b"Authorization: Bearer x \t\r\nIdempotency-Key:\t k \r\nX-Blank: \t \r\nX-Empty:\r\nX-Within:  a \t b \r\n"
    )
    async with Upstream(answering(OK)) as upstream, served(upstream.url) as (client, _):
        assert (await raw(client, REQUEST % fields)).startswith(b"HTTP/1.1 200")
        lines = upstream.requests[0].raw.split(b"\r\n")
        for line in (
            b"authorization: Bearer x",
            b"idempotency-key: k",
            b"x-blank: ",
            b"x-empty: ",
            b"x-within: a \t b",
        ):
            assert line in lines


async def test_preferences_are_read_without_it() -> None:
    async with Upstream(answering(OK)) as upstream, served(upstream.url) as (client, _):
        data = REQUEST % b"Idempotency-Key: k\r\nIdempotency-Raise-On-Duplicate: ?1 \t\r\nPrefer: wait=1 \t\r\n"
        assert (await raw(client, data)).startswith(b"HTTP/1.1 200")
        assert b'"code":"duplicate"' in await raw(client, data)


async def test_a_stored_response_has_none_either() -> None:
    answer = CREATED.replace(b"\r\n\r\n", b"\r\nlocation:\t /payments/1 \t\r\nx-blank: \t\r\n\r\n")
    async with Upstream(by_path({"/": answer})) as upstream, served(upstream.url) as (client, _):
        for _ in range(2):
            head = (await raw(client, REQUEST % b"Idempotency-Key: k\r\n")).partition(b"\r\n\r\n")[0].split(b"\r\n")
            assert b"location: /payments/1" in head
            assert b"x-blank: " in head


@pytest.mark.parametrize("pieces", [1, 3, 1000])
def test_a_response_s_fields_are_read_without_it_in_any_pieces(pieces: int) -> None:
    reader = ResponseReader()
    reader.expect(is_head=False)
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 0 \t\r\nkeep-alive: timeout=5 \r\nconnection: keep-alive \t\r\na: b \t \r\n\r\n"
    for start in range(0, len(head), pieces):
        reader.feed(head[start : start + pieces])
    assert reader.failure is None
    assert reader.complete
    assert (b"a", b"b") in reader.headers
    assert reader.head.idle_timeout == 5
