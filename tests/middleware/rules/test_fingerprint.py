"""The fingerprint: what makes two requests under one key the same.

Rules of docs/contract.md: R5.12, R5.15, R5.16.
"""

import json
import random
from hashlib import blake2b

import pytest

from oncegate.middleware.rules.keys.canonical_json import canonical_json
from oncegate.middleware.rules.keys.key import fingerprint
from tests.middleware.conftest import MakeDoor
from tests.middleware.door import Answering

DEEP = b"[" * 80 + b"]" * 80

SAME_JSON = [
    pytest.param(b'{"a": 1, "b": [1, 2]}', b'{"b":[1,2],"a":1}', id="member order and white space"),
    pytest.param(b'{"a": {"x": 1, "y": 2}}', b'\n{"a"\t:{"y":2,"x":1}} ', id="nested member order"),
    pytest.param(b'{"caf\\u00e9": "\\u20ac\\/"}', '{"caf\u00e9": "\u20ac/"}'.encode(), id="spelling of strings"),
    pytest.param(b"12345678901234567890.10", b" 12345678901234567890.10 ", id="digits of a number"),
]

OTHER_JSON = [
    pytest.param(b'{"a": 1}', b'{"a": 2}', id="another number"),
    pytest.param(b'{"a": 1}', b'{"a": 1.0}', id="1 and 1.0"),
    pytest.param(b'{"a": 1e2}', b'{"a": 100}', id="1e2 and 100"),
    pytest.param(b'{"a": 1e2}', b'{"a": 1E2}', id="1e2 and 1E2"),
    pytest.param(b'{"a": 0}', b'{"a": -0}', id="0 and -0"),
    pytest.param(b'{"a": 1234567890123456789}', b'{"a": 1234567890123456788}', id="the last of 19 digits"),
    pytest.param(b'{"a": 0.1}', b'{"a": 0.1000000000000000055511151231257827}', id="floats that are equal"),
    pytest.param(b"[1, 2]", b"[2, 1]", id="the order of a list"),
    pytest.param(b'{"a": 1}', b'{"a": "1"}', id="a number and a string"),
    pytest.param(b'{"a": true}', b'{"a": 1}', id="true and 1"),
    pytest.param(b'{"a": null}', b"{}", id="null and nothing"),
    pytest.param(b"{}", b"[]", id="an empty object and list"),
    pytest.param(b'{"a": ""}', b'{"a": " "}', id="white space in a string"),
    pytest.param(b'{"a": 1, "a": 2}', b'{"a": 2}', id="a repeated member name is taken raw"),
    pytest.param(b'{"a": 1, "a": 2}', b'{"a":1,"a":2}', id="and so is its white space"),
    pytest.param(b'{"a": NaN}', b'{"a":NaN}', id="NaN is not JSON"),
    pytest.param(b"[Infinity]", b"[ Infinity]", id="Infinity is not JSON"),
    pytest.param(DEEP, DEEP + b" ", id="too deep is taken raw"),
    pytest.param(b"\xef\xbb\xbf{}", b"{}", id="a byte order mark"),
    pytest.param(b'{"a": "\xff"}', b'{"a":"\xff"}', id="not UTF-8"),
    pytest.param(b"a=1", b"a=1 ", id="not JSON"),
    pytest.param(b"", b" ", id="empty"),
]


@pytest.mark.parametrize(("first", "retry"), SAME_JSON)
async def test_fingerprint_json_ignores_what_does_not_count(door: MakeDoor, first: bytes, retry: bytes) -> None:
    there = door(app := Answering(201), fingerprint="json")
    await there.send(first)
    assert (await there.send(retry)).replayed
    assert app.calls == 1


@pytest.mark.parametrize(("first", "other"), OTHER_JSON)
async def test_fingerprint_json_tells_values_apart(door: MakeDoor, first: bytes, other: bytes) -> None:
    there = door(app := Answering(201), fingerprint="json")
    await there.send(first)
    assert (await there.send(first)).replayed
    assert (await there.send(other)).code == "key-reused"
    assert app.calls == 1


@pytest.mark.parametrize(("first", "other"), SAME_JSON)
async def test_fingerprint_raw_compares_byte_by_byte(door: MakeDoor, first: bytes, other: bytes) -> None:
    there = door(app := Answering(201))
    await there.send(first)
    assert (await there.send(first)).replayed
    assert (await there.send(other)).code == "key-reused"
    assert app.calls == 1


async def test_fingerprint_leaves_request_headers_out(door: MakeDoor) -> None:
    there = door(Answering(201))
    await there.send(headers=[("traceparent", "00-1-1-00"), ("content-type", "application/json")])
    assert (await there.send(headers=[("traceparent", "00-2-2-00"), ("user-agent", "retry/2")])).replayed


async def test_fingerprint_takes_the_path_as_it_was_sent(door: MakeDoor) -> None:
    there = door(Answering(201))
    await there.send(path="/a/b")
    assert (await there.send(path="/a%2Fb")).code == "key-reused"


async def test_fingerprint_does_without_a_raw_path(door: MakeDoor) -> None:
    """Of ASGI's scope, raw_path is optional."""
    there = door(Answering(201))
    await there.send(path="/a", raw_path=None)
    assert (await there.send(path="/a", raw_path=None)).replayed
    assert (await there.send(path="/b", raw_path=None)).code == "key-reused"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("POST", b"/a", b"b", b"c"), ("POST", b"/ab", b"", b"c")),
        (("POST", b"/a", b"b", b"c"), ("POST", b"/a", b"", b"bc")),
        (("POST", b"/a", b"bc", b""), ("POST", b"/a", b"b", b"c")),
        (("POST", b"T/a", b"", b""), ("POSTT", b"/a", b"", b"")),
        (("POST", b"/1:0:", b"", b""), ("POST", b"/", b"1:0:", b"")),
    ],
)
def test_fingerprint_no_octet_moves_from_one_part_into_the_next(
    one: tuple[str, bytes, bytes, bytes], other: tuple[str, bytes, bytes, bytes]
) -> None:
    assert fingerprint(*one) != fingerprint(*other)


FINGERPRINTS = [
    (("POST", b"/payments", b"", b"{}"), False, "57a50267ca753f314a6d563870da8195"),
    (("PATCH", b"/a%20b", b"x=1&y", b""), False, "daf1a250cefc265b82bb2a53c3921edd"),
    (("PUT", b"/payments", b"", b"{}"), False, "3e1e928acfec6433c1b947ac6c34965e"),
    (("DELETE", b"/payments", b"", b"{}"), False, "2d4931dd3f7e350fb237931e17241e88"),
    (("MKCOL", b"/payments", b"", b"{}"), False, "910cdd96f60b61f64456f4c13bdbe845"),
    (("POST", b"/", b"", bytes(range(256))), False, "96fcb8a7c0cfa375f9cd660883a38fee"),
    (("POST", b"/payments", b"", b'{"b":[1, 2.0],"a":"\\u20ac"}'), True, "86fc2e60cf3002f07eb6e5360b458bcd"),
    (("POST", b"/payments", b"", b"{"), True, "22fae634f3134c227fac46038601ee57"),
]


@pytest.mark.parametrize(("request_parts", "as_json", "digest"), FINGERPRINTS)
def test_fingerprints_are_what_they_ever_were(
    request_parts: tuple[str, bytes, bytes, bytes], as_json: bool, digest: str
) -> None:
    """They are stored: with another one, no retry of an older request would be taken for its own."""
    assert fingerprint(*request_parts, as_json=as_json).hex() == digest


def test_fingerprint_a_raw_body_that_looks_canonical_is_not_taken_for_json() -> None:
    repeated = b'{"a":1,"a":1}'
    assert fingerprint("POST", b"/", b"", b"{}") != fingerprint("POST", b"/", b"", b"{}", as_json=True)
    assert fingerprint("POST", b"/", b"", repeated) == fingerprint("POST", b"/", b"", repeated, as_json=True)


def test_fingerprint_of_absurd_nesting_is_no_error() -> None:
    for body in (b"[" * 100_000, b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 50_000 + b"1" + b"}" * 50_000):
        assert fingerprint("POST", b"/", b"", body, as_json=True) == fingerprint("POST", b"/", b"", body)


async def test_fingerprint_as_json_up_to_a_size(door: MakeDoor) -> None:
    """It is found on the event loop: beyond the size, bodies are compared byte by byte. The size of a retry's body decides."""
    there = door(Answering(201), fingerprint="json")
    most = b"2" * (8192 - len(b'{"a":1,"b":}'))
    await there.send(b'{"a":1,"b":%s}' % most, key="short")
    assert (await there.send(b'{"b":%s,"a":1}' % most, key="short")).replayed
    await there.send(b'{"a":1,"b":%s2}' % most, key="long")
    assert (await there.send(b'{"a":1,"b":%s2}' % most, key="long")).replayed
    assert (await there.send(b'{"b":%s2,"a":1}' % most, key="long")).code == "key-reused"


@pytest.mark.parametrize("seed", range(20))
def test_fingerprint_as_json_is_that_of_the_standard_librarys_spelling(seed: int) -> None:
    value = arbitrary(random.Random(seed), 5)
    spelled = json.dumps(value, indent=1).encode()
    plain = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    assert canonical_json(spelled) == plain


def arbitrary(chance: random.Random, depth: int) -> object:
    leaves = (None, True, False, -7, 1.5e300, "", "\u20ac\n", '"\\')
    kind = chance.randrange(3) if depth else 2
    if kind == 0:
        return [arbitrary(chance, depth - 1) for _ in range(chance.randrange(4))]
    if kind == 1:
        return {chance.choice("abc\u20acd"): arbitrary(chance, depth - 1) for _ in range(chance.randrange(4))}
    return chance.choice(leaves)


@pytest.mark.parametrize(("depth", "canonical"), [(64, True), (65, True), (66, False)])
def test_fingerprint_as_json_of_what_nests_too_deep_is_raw(depth: int, canonical: bool) -> None:
    body = b"[ " * depth + b"]" * depth
    assert (fingerprint("POST", b"/", b"", body, as_json=True) != fingerprint("POST", b"/", b"", body)) is canonical


@pytest.mark.parametrize("method", ["POST", "QUERY"])
@pytest.mark.parametrize("size", [0, 255, 256, 4096, 4097])
def test_a_fingerprint_of_any_size_is_of_all_its_parts_with_their_lengths(method: str, size: int) -> None:
    """As other versions make it, whose records are compared with it."""
    for path, query, body in ((b"p" * size, b"q", b"b"), (b"p", b"q" * size, b"b"), (b"p", b"q", b"b" * size)):
        sizes = b"%d:%d:%d:raw:" % (len(method), len(path), len(query))
        whole = blake2b(sizes + method.encode() + path + query + body, digest_size=16)
        assert fingerprint(method, path, query, body) == whole.digest()
