"""What Redis says, however odd, is taken alike by both builds."""

import random
from typing import Any

import pytest

from tests.builds.both import same

pytestmark = pytest.mark.compiled

RECORD = b"\x01I" + b"t" * 16 + b"f" * 16 + b"\x00\x00\x00\x02" + bytes(7) + b"\x05" + b"A" + bytes(8)
VALUES: list[bytes] = [
    *(b":1\r\n", b":0\r\n", b":-1\r\n", b":2\r\n", b":99999999999999999999\r\n", b"$-1\r\n", b"*-1\r\n", b"*0\r\n"),
    *(
        b"+OK\r\n",
        b"+PONG\r\n",
        b"$1\r\n1\r\n",
        b"$0\r\n\r\n",
        b"-ERR x\r\n",
        b"-OOM no\r\n",
        b"-WRONGTYPE x\r\n",
        b"-\r\n",
    ),
    *(b"-NOSCRIPT No matching script\r\n", b"-MOVED 5 host:7\r\n", b"-READONLY x\r\n", b"-LOADING x\r\n", b"-odd\r\n"),
    *(b"*3\r\n:0\r\n$%d\r\n%b\r\n:%d\r\n" % (len(RECORD), RECORD, left) for left in (9, 5, 0, -1, -2)),
    *(b"*3\r\n:1\r\n$%d\r\n%b\r\n:9\r\n" % (len(RECORD), RECORD), b"*3\r\n:0\r\n$-1\r\n:9\r\n", b"*2\r\n:0\r\n:1\r\n"),
    *(
        b"*3\r\n:0\r\n$1\r\nx\r\n:9\r\n",
        b"*3\r\n-ERR\r\n+x\r\n:9\r\n",
        b"*3\r\n:0\r\n$0\r\n\r\n$1\r\n9\r\n",
        b"*1\r\n*1\r\n:1\r\n",
    ),
    *(
        b"_\r\n",
        b"#t\r\n",
        b",1.5\r\n",
        b"%1\r\n+a\r\n:1\r\n",
        b">2\r\n+push\r\n:1\r\n",
        b"~1\r\n:1\r\n",
        b"(12345678901234567890123\r\n",
    ),
    *(b"?\r\n", b"$5\r\nab\r\n", b"*3\r\n:1\r\n", b"\r\n", b"\x00", b":x\r\n"),
]
"""Most as Redis may send them, some in the other version of its protocol, and some of no version."""

GIVEN: tuple[Any, ...] = (
    None, True, False, 0, 1, 2, -1, 1.0, 10**30, b"", b"1", "1", "text", [], {}, {1: 2}, ("ERR x",), ("OOM x",),
    ("WRONGTYPE",), ("",), [1], [1, RECORD], [0, RECORD, 9], [1, RECORD, 9], [True, RECORD, 9], [0, RECORD, True],
    [0, RECORD, 1.5], [0, RECORD, -1], [0, RECORD, None], [0, None, 9], [0, "text", 9], [0, bytearray(RECORD), 9],
    [0, b"", 9], [b"1", RECORD, 9], [None, RECORD, 9], [0, RECORD, 9, 9], [[], RECORD, 10**30], [1.0, RECORD, 0],
    [0, b"\x02", 9], [0, 5, 9], [0, [], 9],
)  # fmt: skip
CALLS = ("claim", "submission", "adopted", "outcome", "send", "behind")


def test_bytes_that_come_in() -> None:
    chance = random.Random(1)
    calls = []
    for _ in range(2500):
        kinds = chance.choices(CALLS, k=chance.randrange(1, 12))
        data = b"".join(chance.choices(VALUES, k=chance.randrange(len(kinds) + 3)))
        cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.choice((0, 1, 3))))
        pieces = [data[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        bounds = chance.choice(((10_000, 10**6), (10_000, 10**6), (3, 10**6), (10_000, 300)))
        calls.append(("replies", (kinds, pieces, chance.random() < 0.3, bounds, chance.random() < 0.05)))
    same("replies", calls)


def test_replies_as_they_are_given() -> None:
    kinds = ("claim", "adopted", "outcome")
    same("replies", [("read", (kind, reply, late)) for kind in kinds for reply in GIVEN for late in (False, True)])


def test_errors() -> None:
    chance = random.Random(2)
    words = [
        "ERR", "OOM", "MISCONF", "MOVED", "ASK", "WRONGTYPE", "NOSCRIPT", "x", "", ":", "1:2", "h:6379", "?:1", "[::1]:5", ":80",
        "\u0661:\u0662", "h:\u00b2", "A" * 40, "TRYAGAIN:", "Z9", "\ud800", "\n",
    ]  # fmt: skip
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("error", (chance.choice((" ", "", "  ")).join(chance.choices(words, k=chance.randrange(5))),))
        for _ in range(1500)
    ]
    numbers = (None, 0, 1, 5, 13, 110, 111, -2, -3, 99999, 10**20)
    for name in ("OSError", "TimeoutError", "ConnectionRefusedError", "SSLError", "SSLEOFError", "SSLZeroReturnError"):
        calls += [
            ("opening", (name, *given))
            for given in ((), ("x",), ("[Errno 111] refused",), ("[Errno 99999] y",), ("WRONGPASS",))
        ]
        calls += [("opening", (name, number, text)) for number in numbers for text in (None, "text", "named", "")]
    versions = [
        "7.0.0",
        "6.2.14",
        "7",
        "",
        "x",
        "7.2-rc1",
        "10.0",
        "\u0667.0",
        "valkey 8.0",
        "1" * 5000,
        "6.9.9.9",
        "7.0.0.1.2.3",
    ]
    same("replies", [*calls, *(("version", (text,)) for text in versions)])


def test_commands() -> None:
    chance = random.Random(3)
    calls = [
        ("packed", ([chance.randbytes(chance.randrange(6)) for _ in range(chance.randrange(6))],)) for _ in range(800)
    ]
    same("replies", [*calls, ("packed", ([b"%", b"%d%b", b"\r\n%%"],)), ("packed", ([b"x" * 70_000],))])
