"""A head that is like the last one of its connection goes on as it would alone: what is kept of that shows in no byte."""

import gc
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncegate.app.http1 import EMPTY_QUERY, RequestRefused, RequestWriter, TrustedPeers
from oncegate.app.last_head import LastHead

Field = tuple[bytes, bytes]
WRITERS = (
    RequestWriter(b"", b"upstream", TrustedPeers([]), ["Idempotency-Key"]),
    RequestWriter(b"/base", b"upstream", TrustedPeers(["10.0.0.0/8"]), via=False),
)
CLIENTS = (("192.0.2.1", 1), ("192.0.2.2", 1), ("10.0.0.1", 1), None)
VALUES = {
    b"host": [b"a", b"b"],
    b"connection": [b"keep-alive", b"x-a", b"x-a, x-b"],
    b"content-length": [b"0", b"2", b"02", b"3", b"x"],
    b"transfer-encoding": [b"chunked", b"gzip"],
    b"x-forwarded-proto": [b"http", b"https"],
}
OTHER_VALUES = [b"1", b"22", b"1\r\nx-b: 2", b"1\n", b"1\r", b"1\0", b"v" * 2000]
NAMES = [
    *(b"host", b"host", b"content-length", b"connection", b"transfer-encoding", b"x-forwarded-for", b"x-forwarded-proto"),
    *(b"x.forwarded-user", b"x-forwarded-host", b"forwarded", b"expect", b"te", b"x-a", b"x-a", b"x-b", b"authorization"),
    *(b"idempotency-key", b"idempotency_key"),
]  # fmt: skip
FIELDS = st.sampled_from(NAMES).flatmap(
    lambda name: st.tuples(st.just(name), st.sampled_from(VALUES.get(name, OTHER_VALUES)))
)


@st.composite
def conversations(draw: st.DrawFn) -> list[tuple[RequestWriter, dict[str, Any], bytes]]:
    """Requests of one connection, most of which have the names of the one before."""
    writer, scope, body = draw(st.sampled_from(WRITERS)), scope_of([]), b""
    made = []
    for _ in range(draw(st.integers(2, 8))):
        what = draw(st.integers(0, 9))
        fields = list(scope["headers"])
        if what == 0 or not fields:
            fields = draw(st.lists(FIELDS, max_size=6))
        elif what == 1:
            target = {"raw_path": draw(st.sampled_from([b"/", b"/a", b"*", b"/ b", b""])), "path": "/other"}
            scope |= target | {"query_string": draw(st.sampled_from([b"", b"q", b"q r"]))}
            scope.pop(EMPTY_QUERY, None)
            scope |= draw(st.sampled_from([{}, {EMPTY_QUERY: True}]))
        elif what == 2:
            scope |= {"method": draw(st.sampled_from(["GET", "OPTIONS", "CONNECT", "BREW"]))}
        elif what == 3:
            scope |= {"client": draw(st.sampled_from(CLIENTS)), "scheme": draw(st.sampled_from(["http", "https"]))}
        elif what == 4:
            writer = draw(st.sampled_from(WRITERS))
        elif what == 5:
            body = draw(st.sampled_from([b"", b"ab", b"abc"]))
            fields = [(name, b"%d" % len(body) if name == b"content-length" else value) for name, value in fields]
        else:
            at = draw(st.integers(0, len(fields) - 1))
            name = fields[at][0]
            fields[at] = (name, draw(st.sampled_from(VALUES.get(name, OTHER_VALUES))))
        scope = {**scope, "headers": fields}
        made.append((writer, scope, body))
    return made


def scope_of(fields: list[Field], **others: Any) -> dict[str, Any]:
    target = {"method": "POST", "path": "/", "raw_path": b"/", "query_string": b""}
    return {**target, "client": CLIENTS[0], "scheme": "http", "headers": fields, **others}


def written(writer: RequestWriter, scope: dict[str, Any], body: bytes, last: LastHead | None = None) -> bytes | None:
    try:
        return writer.whole(scope, scope["headers"], body, last)
    except RequestRefused:
        return None


@settings(max_examples=300, deadline=None)
@given(conversations())
def test_a_head_is_the_same_whatever_was_before_it(requests: list[tuple[RequestWriter, dict[str, Any], bytes]]) -> None:
    last = LastHead()
    for writer, scope, body in requests:
        assert written(writer, scope, body, last) == written(writer, scope, body)


USUAL: list[Field] = [(b"host", b"a"), (b"x-a", b"1"), (b"content-length", b"2"), (b"idempotency-key", b"k")]
CONNECTED: list[Field] = [(b"connection", b"x-a"), *USUAL]
FORWARDED: list[Field] = [(b"x-forwarded-proto", b"https"), (b"x-forwarded-user", b"1"), *USUAL]
OTHERS: list[dict[str, Any]] = [
    {},
    {"method": "PUT"},
    {"raw_path": b"/b"},
    {"query_string": b"q"},
    {EMPTY_QUERY: True},
    {"raw_path": b"", "path": "/c"},
    {"raw_path": b"", "path": "/d"},
    {"client": CLIENTS[1]},
    {"client": CLIENTS[2]},
    {"scheme": "https"},
]


@pytest.mark.parametrize("fields", [USUAL, CONNECTED, FORWARDED], ids=["usual", "connection", "forwarded"])
def test_each_part_of_a_head_may_be_another_one(fields: list[Field]) -> None:
    changed = [
        [*fields[:at], (fields[at][0], value), *fields[at + 1 :]]
        for at in range(len(fields))
        for value in [*VALUES.get(fields[at][0], OTHER_VALUES), b"3", fields[at][1]]
    ]
    shapes = [*changed, fields[1:], fields[::-1], [*fields, (b"x-b", b"1")], [*fields[:-1], (b"x-b", b"1")]]
    shapes += [[*fields[:at], (name, b"1"), *fields[at + 1 :]] for at in range(len(fields)) for name in NAMES]
    requests = [(scope_of(each), body) for each in shapes for body in (b"ab", b"abc")]
    requests += [(scope_of(fields, **other), b"ab") for other in OTHERS]
    befores = [scope_of(fields, **other) for other in (OTHERS[0], *OTHERS[4:6], OTHERS[8])]
    for writer, before, (after, body) in product(WRITERS, befores, requests):
        last = LastHead()
        written(writer, before, b"ab", last)
        assert written(writer, after, body, last) == written(writer, after, body), (before, after)
        assert written(writer, after, b"ab", last) == written(writer, after, b"ab"), (before, after)
        assert written(writer, before, b"ab", last) == written(writer, before, b"ab"), (before, after)
        assert written(WRITERS[0], after, body, last) == written(WRITERS[0], after, body), "another writer's"


@pytest.mark.parametrize("client", CLIENTS[:3])
@pytest.mark.parametrize("name", [b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host", b"forwarded", b"via"])
def test_who_sends_what_we_add_gets_no_other_value_in_its_place(client: tuple[str, int], name: bytes) -> None:
    alone = [(b"x-a", b"1"), (b"host", b"a")]
    writers = (*WRITERS, RequestWriter(b"", b"upstream", TrustedPeers([]), via=False))
    for writer in writers:
        added = written(writer, scope_of(alone, client=client), b"ab") or b""
        values = [line.partition(b": ")[2] for line in added.split(b"\r\n") if line.startswith(name + b":")]
        last = LastHead()
        for value in (*values, b"203.0.113.9", b"https"):
            for ends in (
                [(name, value)],
                [(name, value), (b"x-b", b"2")],
                [(b"x-forwarded-for", client[0].encode()), (name, value)],
            ):
                scope = scope_of([*alone, *ends], client=client)
                assert written(writer, scope, b"ab", last) == written(writer, scope, b"ab")
                scope = scope_of([*alone, *ends[:-1], (ends[-1][0], b"203.0.113.10")], client=client)
                assert written(writer, scope, b"ab", last) == written(writer, scope, b"ab")


def test_what_was_judged_is_not_judged_again() -> None:
    last, writer, given = LastHead(), WRITERS[0], USUAL[:]
    scope = scope_of(given)
    first = written(writer, scope, b"ab", last)
    assert written(writer, {**scope, "headers": USUAL[:]}, b"ab", last) is first, "the very bytes"
    headers = [*USUAL[:3], (b"idempotency-key", b"another")]
    assert last.is_like(writer, scope, headers)
    assert last.again(headers, 2) == written(writer, scope_of(headers), b"ab")
    assert given == USUAL, "the list is its owner's"


def test_what_was_found_of_one_head_is_not_taken_for_another_one_s() -> None:
    last, writer = LastHead(), WRITERS[0]
    for names in (b"abx", b"xab", b"abx"):
        for value in (b"1", b"2"):
            values = {b"a": (b"a", value), b"b": (b"b", b"0"), b"x": (b"connection", b"close")}
            fields = [(b"host", b"a"), *(values[bytes([name])] for name in names)]
            assert written(writer, scope_of(fields), b"", last) == written(writer, scope_of(fields), b"")


def kept_by(last: LastHead) -> int:
    """The bytes that it refers to."""
    found: dict[int, Any] = {}
    ahead: list[Any] = [last]
    while ahead:
        for each in gc.get_referents(ahead.pop()):
            if isinstance(each, bytes | list | tuple) and id(each) not in found:
                found[id(each)] = each
                ahead.append(each)
    return sum(len(each) for each in found.values() if isinstance(each, bytes))


@pytest.mark.parametrize("is_like", [False, True])
def test_of_a_long_head_nothing_is_kept(is_like: bool) -> None:
    last, writer = LastHead(), WRITERS[0]
    long: list[Field] = [*USUAL[:3], (b"idempotency-key" if is_like else b"cookie", b"v" * 2048)]
    written(writer, scope_of(USUAL), b"ab", last)
    assert 0 < kept_by(last) < 1024
    assert written(writer, scope_of(long), b"ab", last) == written(writer, scope_of(long), b"ab")
    assert kept_by(last) == 0


def test_what_is_kept_takes_few_bytes() -> None:
    last, writer = LastHead(), WRITERS[0]
    for size in (1, 1800, 10):
        fields: list[Field] = [*USUAL, (b"authorization", b"v" * size)]
        written(writer, scope_of(fields), b"ab", last)
        assert kept_by(last) < 3 * (size + 400), "its fields, their lines, and the whole"
