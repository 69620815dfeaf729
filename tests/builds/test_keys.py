"""Keys, callers, preferences, fingerprints and rules are read alike by both builds."""

import random
from typing import Any

import pytest

from tests.builds.both import same

pytestmark = pytest.mark.compiled

KEYS: tuple[bytes, ...] = (
    b"abc", b'"abc"', b'"a b"', b" abc\t", b'"a\\"b"', b'"a\\x"', b'"abc', b"a,b", b"", b'""', b"k" * 255, b"k" * 256,
    b'"' + b"k" * 255 + b'"', b'"' + b"\\\\" * 256 + b'"', b'"a";x=1;y="z";w', b'"a"; *q=?1', b'"a";X=1', b"\xc3\xa9",
    b'"\xc3\xa9"', b'"\x7f"', b"a b", b"(1)", b"\\", b'"a" ;b', b'"a";b=:aGk=:;c=@1;d=%"x"', b'"a";b=1.2345', b"-",
    b"a\n",
)  # fmt: skip
PREFERENCES: tuple[bytes, ...] = (
    b"wait=5", b"WAIT = 7", b'wait="9"', b"wait=0", b"wait=" + b"9" * 5000, b"wait=00012; x=y", b"wait", b"wait=-1",
    b"respond-async", b"respond-async, wait=3", b'Respond-Async=""', b"respond-async=1", b'x="a,wait=4"',
    b'x="\\"",wait=2', b"wait=1,wait=2", b",,,wait=3", b'"', b"\xff", b"respond-async; a=b", b"wait=\xd9\xa0", b"",
)  # fmt: skip
CREDENTIALS: tuple[bytes, ...] = (
    b"Bearer x", b"AWS4-HMAC-SHA256 y", b"OAuth z", b"HMAC", b"Digest a", b"", b"Sig", b"Signature b", b"\xff" * 300,
)  # fmt: skip
SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"aliases": ["X-Key", "Other-Key"]},
    {"on_missing_key": "reject", "require_scope": True},
    {"on_missing_key": "generate", "scope": ["header:X-Api-Key", "header:Authorization"], "max_wait": 3.7},
    {"aliases": ["X-Key"], "raise_on_duplicate": True, "require_scope": True, "scope": ["header:X-Api-Key"]},
)
ALPHABET = b'ab"\\;=, \t\x00\x7f\xff?:@%*'


def scrap(chance: random.Random) -> bytes:
    return bytes(chance.choice(ALPHABET) for _ in range(chance.randrange(12)))


def test_key_lines() -> None:
    chance = random.Random(1)
    lines = [*KEYS, *(scrap(chance) for _ in range(3000)), *(b'"' + scrap(chance) + b'"' for _ in range(1000))]
    same("keys", [("names", ("parse_key", line)) for line in lines])


def test_heads_of_requests() -> None:
    chance = random.Random(2)
    calls = []
    for _ in range(3000):
        lines = []
        for name, values in (
            (b"idempotency-key", KEYS),
            (b"x-key", KEYS[:4]),
            (b"other-key", KEYS[:4]),
            (b"prefer", PREFERENCES),
            (b"authorization", CREDENTIALS),
            (b"x-api-key", CREDENTIALS),
            (b"idempotency-raise-on-duplicate", (b"?1", b" TRUE ", b"1", b"0", b"")),
            (b"content-length", (b"1", b"x")),
        ):
            lines += [(name, chance.choice((*values, scrap(chance)))) for _ in range(chance.choice((0, 0, 1, 1, 1, 2)))]
        chance.shuffle(lines)
        calls.append(("head", (lines, chance.choice(SETTINGS))))
    same("keys", calls)


def test_scopes_and_ids() -> None:
    chance = random.Random(3)
    texts = ("", "k", "\u20ac", "\ud800", "k" * 255, "k" * 256, "a:b", "}", "{a}", "\0", "\U0001f600")
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("names", (name, text)) for name in ("check_key", "caller_scope") for text in texts
    ]
    scopes: tuple[list[bytes] | None, ...] = (
        None,
        [],
        [b""],
        [b"a", b"1", b"b"],
        [b"a", b"0", b"b", b"2", b"x", b"y"],
        [b"x" * 9999],
    )
    calls += [
        ("names", ("record_key", name, text, scope))
        for name in ("", "n", "\u20ac")
        for text in texts
        for scope in scopes
    ]
    calls += [("names", ("execution_key", text, other)) for text in texts for other in texts]
    for text in texts:
        calls += [
            ("names", ("record_id", "n:k:s" + text)),
            ("names", ("record_id", "{n:k:s}:" + text)),
            ("names", ("record_id", text)),
        ]
    for _ in range(500):
        names = [chance.choice((b"a", b"b", b"c")) for _ in range(chance.randrange(1, 4))]
        fields = {name: [scrap(chance) for _ in range(chance.randrange(3))] for name in (b"a", b"b")}
        calls.append(("names", ("scope_parts", fields, names)))
    same("keys", calls)


def test_fingerprints() -> None:
    chance = random.Random(4)
    digits = b"9" * 5000
    bodies = [
        b"", b"{}", b"\xff", b"[" * 64 + b"]" * 64, b"[" * 65 + b"]" * 65, b"[" * 99999, b'{"a":' * 999 + b"1" + b"}" * 999,
        digits, b"-" + digits, b"1e" + digits, b"0.0000", b"1.0", b"-0", b"01", b"NaN", b"Infinity", b"1e400", b"[1,2", b"\x00",
        b'{"a":1,"a":2}', b'{"b":1,"a":2}', b'{"a":2, "b":1}', b'"\\ud800"', b'"\\ud83d\\ude00"', b'"\xf0\x9f\x98\x80"',
        b"true", b"null", b'"true"', b'{"\\u0061":1,"a":1}', b'\xef\xbb\xbf{"a":1}', b"{} ", b'" "', '"\u2028"'.encode(), b"'a'",
    ]  # fmt: skip
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("digest", ("POST", b"/p", b"q=1", body, as_json)) for body in bodies for as_json in (False, True)
    ]
    calls += [
        ("digest", (method, b"/", b"", b"x", False)) for method in ("", "PATCH", "\xe9", "\u20ac", "\ud800", "a:b")
    ]
    spelled = b'[]{}",:\\ u0dD8tfn1-.eE'
    for _ in range(2500):
        body = bytes(chance.choice(spelled) for _ in range(chance.randrange(14)))
        calls.append(("digest", ("POST", chance.randbytes(3), chance.randbytes(2), body, chance.random() < 0.8)))
    same("keys", calls)


def test_bodies() -> None:
    chance = random.Random(5)
    calls = []
    one = [b"5", b"9" * 400, b"x", b"-1", b" 7", b"\xb2", b"0", b"", b"1_0"]
    declared: tuple[list[bytes], ...] = ([], *([each] for each in one))
    for _ in range(1500):
        chunks = [
            chance.choice((b"", b"abc", bytearray(b"de"), None, "text", 7, None)) for _ in range(chance.randrange(5))
        ]
        calls.append(("body", (chunks, chance.choice(declared), chance.choice((0, 3, 8, 100)))))
    same("keys", calls)


def test_rules() -> None:
    chance = random.Random(6)
    segments = ("a", "b", "", ".", "..", "a;x=1", "a\\b", "%2e", "\u20ac", "*", "a.b", "\n")
    calls: list[tuple[str, tuple[Any, ...]]] = []
    for _ in range(150):
        routes = []
        for _ in range(chance.randrange(4)):
            pattern = "/" + chance.choice(("a", "a/*", "*", "b*", "a.b", "a/"))
            route: dict[str, Any] = {"path": pattern, "on_missing_key": chance.choice(("run", "reject"))}
            route["methods"] = chance.sample(["POST", "GET", "PATCH", "PUT"], 2)
            route["status"] = {chance.randrange(200, 600): chance.choice(("success", "failure", "release", "unknown"))}
            if chance.random() < 0.3:
                route["mode"] = chance.choice(("async", "either"))
                route["methods"] = ["POST"]
            routes.append(route)
        settings = {
            "lease": chance.choice((0.5, 30, 3600)),
            "ttl": chance.choice((0.0001, 1, 10**9)),
            **chance.choice(SETTINGS),
        }
        settings["on_unknown"] = chance.choice(("retry", "refuse"))
        settings["on_cache_down"] = chance.choice(("fail_open", "fail_closed"))
        requests = [
            (
                chance.choice(("POST", "GET", "PUT", "post", "")),
                "/" + "/".join(chance.choices(segments, k=chance.randrange(4))),
            )
            for _ in range(6)
        ]
        calls.append(("rules", (settings, routes, requests)))
    calls += [("paths", ("/".join(chance.choices(segments, k=chance.randrange(7))),)) for _ in range(1500)]
    calls += [
        ("kinds", (status, over))
        for status in (-1, 0, 99, 200, 399, 401, 502, 599, 10**30)
        for over in ({}, {200: "unknown"})
    ]
    same("keys", calls)
