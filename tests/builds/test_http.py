"""Requests and responses, odd and damaged and in pieces, are read and written alike by both builds."""

import random
from typing import Any

import pytest

from tests.builds.both import same

pytestmark = pytest.mark.compiled

LINES: tuple[bytes, ...] = (
    b"Host: a", b"host: b", b"Host:", b"HOST: a:80", b"Content-Length: 5", b"Content-Length: 0",
    b"Content-Length: 05", b"Content-Length: x", b"Content-Length: -1", b"Content-Length: 99999999999999999999",
    b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding: xchunked",
    b"Connection: close", b"Connection: keep-alive", b"Connection: upgrade, x-a", b"Upgrade: h2c",
    b"Upgrade: websocket", b"Expect: 100-continue", b"Expect: x", b"X-A: b", b"X-A: \xff\xfe", b"X_A: b", b": x",
    b"X A: b", b" folded", b"X-A:b\x00c", b"X-Empty:", b"Idempotency-Key: k", b"Date: x",
    b"Keep-Alive: timeout=5, max=3", b'Keep-Alive: timeout = "7"', b"Keep-Alive: timeout=x", b"Trailer: x", b"X-B: y",
)  # fmt: skip
TARGETS: tuple[bytes, ...] = (
    b"/", b"/a?b=c", b"/%70?", b"*", b"http://a/b?c", b"http://a", b"https://u@h/", b"//x", b"/a#b", b"a", b"/\xff",
    b"?", b"/ b",
)  # fmt: skip
METHODS: tuple[bytes, ...] = (
    b"GET", b"POST", b"HEAD", b"OPTIONS", b"CONNECT", b"PATCH", b"PRI", b"get", b"M-SEARCH", b"P\xff", b"",
)  # fmt: skip
VERSIONS: tuple[bytes, ...] = (
    b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/0.9", b"HTTP/2.0", b"HTTP/1.2", b"http/1.1", b"",
    b"HTTP/11",
)  # fmt: skip
BODIES: tuple[bytes, ...] = (
    b"", b"hello", b"raise", b"short", b"strea", b"nothi", b"5\r\nhello\r\n0\r\n\r\n",
    b"5\r\nhello\r\n0\r\nX: y\r\n\r\n", b"5\r\nhel", b"8\r\nstreamed\r\n0\r\n\r\n", b"7;x=y\r\nnothing\r\n0\r\n\r\n",
    b"zz\r\n", b"5\nhello\n0\n\n", b"-1\r\n", b"\r\n",
)  # fmt: skip
ENDS: tuple[bytes, ...] = (b"\r\n", b"\r\n", b"\r\n", b"\r\n", b"\r\n", b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r")


def message(chance: random.Random, first: bytes, lines: list[bytes], body: bytes) -> bytes:
    chosen = [*lines, *chance.sample(LINES, chance.choice((0, 0, 1, 2, 4)))]
    chance.shuffle(chosen)
    end = chance.choice(ENDS)
    data = end.join([first, *chosen, b"", b""]) + body
    if chance.random() < 0.3:  # damage
        at = chance.randrange(len(data) + 1)
        data = (
            data[:at] + chance.choice((b"", chance.randbytes(1), b"\r\n", b"\x00")) + data[at + chance.randrange(2) :]
        )
    if chance.random() < 0.15:
        data = data[: chance.randrange(len(data) + 1)]
    return data


def request(chance: random.Random) -> bytes:
    odd = chance.random() < 0.4
    method, target, version = (
        (chance.choice(METHODS), chance.choice(TARGETS), chance.choice(VERSIONS))
        if odd
        else (b"POST", b"/a?b", b"HTTP/1.1")
    )
    body = chance.choice(BODIES)
    framing = b"Transfer-Encoding: chunked" if b"\r\n" in body else b"Content-Length: %d" % len(body)
    lines = [b"Host: a", framing] if chance.random() < 0.8 else []
    return message(chance, b" ".join((method, target, version)), lines, body)


def reply(chance: random.Random) -> bytes:
    status = chance.choice(b"200,200,200,201,204,304,500,100,101,103,99,600,999,2x0,".split(b","))
    version = chance.choice(VERSIONS)
    body = chance.choice(BODIES)
    framing = b"Transfer-Encoding: chunked" if b"\r\n" in body else b"Content-Length: %d" % len(body)
    lines = [framing] if chance.random() < 0.7 else []
    data = message(chance, version + b" " + status + b" OK", lines, body)
    return b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\n" * chance.choice((0, 0, 0, 1, 2)) + data


def in_pieces(chance: random.Random, data: bytes) -> list[bytes]:
    cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.choice((0, 0, 1, 2, 5))))
    pieces = [data[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    return [piece for piece in pieces if piece]


def test_requests_of_clients() -> None:
    chance = random.Random(1)
    calls = []
    for _ in range(2500):
        data = b"".join(request(chance) for _ in range(chance.choice((1, 1, 1, 2, 3))))
        calls.append(
            ("inbound", (in_pieces(chance, data), chance.choice((10**9, 10**9, 10**9, 0, 1, 2)), chance.random() < 0.1))
        )
    same("http", calls)


def test_requests_of_a_size() -> None:
    """Around the limits: heads, trailers, bodies that wait, answers that are written apart from their heads."""
    begin = b"POST / HTTP/1.1\r\nHost: a\r\n"
    calls: list[tuple[str, tuple[Any, ...]]] = []
    for size in (65_000, 65_450, 65_500, 65_536, 65_537, 66_000, 200_000):
        body = b"x" * size
        for data in (
            begin + b"X: " + body + b"\r\n\r\n",
            begin + b"Content-Length: %d\r\n\r\n" % size + body,
            begin + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % size + body + b"\r\n0\r\n\r\n",
            begin + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: " + body + b"\r\n\r\n",
            begin + b"X: y\r\n" * (size // 6) + b"\r\n",
            b"GET /" + body + b" HTTP/1.1\r\nHost: a\r\n\r\n",
        ):
            calls += [
                ("inbound", ([data], 10**9, False)),
                ("inbound", ([data[:40], data[40:70_000], data[70_000:] or b"\r"], 10**9, False)),
            ]
    same("http", calls)


def test_responses_of_upstreams() -> None:
    chance = random.Random(2)
    calls: list[tuple[str, tuple[Any, ...]]] = []
    for _ in range(3000):
        exchanges = [
            (chance.random() < 0.2, in_pieces(chance, reply(chance)), chance.random() < 0.5)
            for _ in range(chance.choice((1, 1, 2)))
        ]
        calls.append(("response", (exchanges,)))
    for size in (65_000, 65_600, 200_000):
        for data in (
            b"HTTP/1.1 200 OK\r\nX: " + b"x" * size + b"\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size,
            b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * (size // 255) + b"\r\n",
            b"HTTP/1.1 100 Continue\r\n\r\n" * (size // 25),
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: " + b"x" * size + b"\r\n\r\n",
        ):
            calls += [("response", ([(False, [data], ends)],)) for ends in (False, True)]
    same("http", calls)


def test_connections_to_upstreams() -> None:
    chance = random.Random(3)
    ways = ("eof", "lost", "reset", "then", "forget")
    calls = []
    for _ in range(2000):
        data = reply(chance) + (reply(chance) if chance.random() < 0.1 else b"")
        if chance.random() < 0.05:
            data = b"HTTP/1.1 200 OK\r\nContent-Length: 150000\r\n\r\n" + b"x" * chance.choice((150_000, 70_000))
        calls.append(
            (
                "connection",
                (chance.random() < 0.2, in_pieces(chance, data), chance.choice(ways), chance.choice((9, 9, 9, 0))),
            )
        )
    same("http", calls)


def test_heads_that_go_upstream() -> None:
    chance = random.Random(4)
    names = (
        b"host content-length transfer-encoding connection x-forwarded-for x_forwarded_for x-a x_a forwarded x-forwarded-proto"
        b" idempotency-key idempotency_key expect te x-real-ip cookie"
    ).split()
    values = [
        b"5",
        b" 5 ",
        b"05",
        b"1e3",
        b"",
        b"chunked",
        b"CHUNKED ",
        b"gzip",
        b"x-a, close",
        b"keep-alive",
        b"a\r\nb",
        b"a\x00",
    ]
    values.append(b"9" * 30)
    calls = []
    for _ in range(3000):
        scope = {
            "type": "http",
            "method": chance.choice(("GET", "POST", "HEAD", "OPTIONS", "CONNECT", "a b", "", "\u20ac")),
            "path": chance.choice(("/", "/a b", "/\u20ac", "*", "", "/\ud800")),
            "raw_path": chance.choice((None, b"/a", b"/a%20", b"*", b"x", b"/#", b"/\xff")),
            "query_string": chance.choice((None, b"", b"a=b", b"a#b", b"?", b"a b")),
            "headers": [(chance.choice(names), chance.choice(values)) for _ in range(chance.randrange(6))],
            "client": chance.choice(
                (None, ["10.0.0.1", 5], ("::ffff:10.0.0.1", 5), ["", 1], ["x", 1], ["192.0.2.1", 1])
            ),
        }
        if chance.random() < 0.5:
            scope["scheme"] = chance.choice(("https", "http"))
        trusted = chance.choice(([], ["10.0.0.0/8"], ["::1", "192.0.2.1"]))
        body = chance.choice((b"", b"hello", b"123456"))
        calls.append(("head", (scope, trusted, chance.choice(([], ["X-A"])), body, chance.random() < 0.3)))
    same("http", calls)
