"""Stored records, whole and damaged, are read and written alike by both builds."""

import random
import struct
from dataclasses import replace
from typing import Any

import pytest

from oncegate.cache.codec import encode, encode_claim
from oncegate.cache.record import ClaimRequest, Record, State, StoredResponse, Trace
from oncegate.cache.transitions import Event
from tests.builds.both import same

pytestmark = pytest.mark.compiled

TOKEN, PRINT = b"owner-token-0123", b"fingerprint-0123"
LINES = ((b"content-type", b"text/plain"), (b"x", b'caf\xe9\\"\t\x7f'), (b"none", b""))
DONE = StoredResponse(201, LINES, b"\x00body", 1_700_000_000_250)
WHO = Trace("gw/\u20ac", 1_700_000_000_000)
WHOLE = [
    encode_claim(ClaimRequest(TOKEN, PRINT, 0, 86_400_000)),
    encode_claim(ClaimRequest(TOKEN, PRINT, 0, 86_400_000, trace=WHO)),
    encode_claim(ClaimRequest(TOKEN, PRINT, 0, 86_400_000, trace=WHO, submission=True)),
    encode(Record(State.SUCCEEDED, TOKEN, PRINT, 1, DONE, trace=replace(WHO, took_ms=250))),
    encode(Record(State.FAILED, TOKEN, PRINT, 2**32 - 1, DONE._replace(body=None), trace=WHO, submission=True)),
    encode(Record(State.UNKNOWN, TOKEN, PRINT, 3, trace=replace(WHO, note="it broke"))),
    encode(Record(State.IN_FLIGHT, TOKEN, PRINT, 7, found=State.FAILED, found_ms=99, retention_ms=5, submission=True)),
]
LEFT = (-2, -1, 0, 1, 5, 6, 86_399_999, 86_400_000, 86_400_001, 2**63, 2**70)
HEADS = [
    *("{}", "[]", "7", '""', "null", '{"s":200}', '{"s":1e3,"h":[],"t":1}', '{"s":200,"h":{},"t":1}', '"sht"'),
    *(
        f'{{"s":{value},"h":[],"t":1}}'
        for value in ("true", "null", '"12"', '" 7 "', '"\u0667"', "1.9", "-1", "1e308", "[]")
    ),
    *(f'{{"s":1,"h":[],"t":{value}}}' for value in ("true", "null", '"12"', "99999999999999999999", "-5.5", "{}")),
    *(f'{{"s":1,"h":{value},"t":1}}' for value in ("7", "null", '"ab"', '["ab","cd"]', '[["a"]]', '[["a","b","c"]]')),
    *(
        f'{{"s":1,"h":[[{value}]],"t":1}}'
        for value in ('"a",1', '1,"a"', 'null,"b"', '["a"],"b"', '"\u0100","b"', '"","\u00ff"')
    ),
    *(f'{{"s":1,"h":[],"t":9,"d":{value}}}' for value in ("true", "1.5", "null", '"1"', "-4", "99999999999999999999")),
    *(f'{{"s":1,"h":[],"t":9,"g":{value},"n":{value},"b":{value}}}' for value in ("1", '"x"', "null", "false", "[[]]")),
    '{"a":1,"s":1,"h":[],"t":1}',
    '{"s":1,"h":[],"t":1,"o":null}',
    '{"s":1,"s":2,"h":[],"t":1}',
    '{"s":1,"h":[["\\ud83d\\ude00","b"]],"t":1}',
    "[" * 2000,
]


def test_whole_and_cut_and_with_anything_behind() -> None:
    calls = [("read", (data, left)) for data in WHOLE for left in LEFT]
    calls += [("read", (data[:size], 1000)) for data in WHOLE for size in range(len(data))]
    calls += [("read", (data + more, 1000)) for data in WHOLE for more in (b"\0", b"{", b'{"a":1}', b"\xff" * 100)]
    same("records", calls)


def test_every_byte_of_them_damaged() -> None:
    chance = random.Random(1)
    same(
        "records",
        [
            ("read", (data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :], left))
            for data in WHOLE
            for at in range(len(data))
            for flip in (1, 0x80, chance.randrange(2, 256))
            for left in (0, 10**9)
        ],
    )


def test_random_bytes_behind_a_beginning_that_is_right() -> None:
    chance = random.Random(2)
    begin = struct.pack(">Bc16s16s", 1, b"S", TOKEN, PRINT)
    calls = []
    for _ in range(3000):
        data = begin[: chance.choice((0, 1, 2, 34))] + chance.randbytes(chance.randrange(120))
        calls.append(("read", (data, chance.choice(LEFT))))
    same("records", calls)


def test_heads_that_are_odd_json() -> None:
    """Without a seal, since one proves that we wrote it: then nothing is odd. So beside some that are whole."""
    calls: list[tuple[str, tuple[Any, ...]]] = [("read", (data, 1000)) for data in WHOLE]
    for head in HEADS:
        packed = head.encode()
        fixed = struct.pack(">Bc16s16sII", 1, b"S", TOKEN, PRINT, 1, len(packed))
        calls += [("read", (fixed + packed + body, 1000)) for body in (b"", b"body")]
        apart = struct.pack(">Bc16s16sII", 1, b"F", TOKEN, PRINT, 1, 0) + packed
        calls += [("read", (apart, 1000)), ("read", (WHOLE[0] + packed, 10**9))]
    same("records", calls)


def test_what_is_written() -> None:
    chance = random.Random(3)
    numbers = (0, 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**80, -1)
    texts = ("", "x", "\u20ac" * 30, "a" * 41, "\ud800", "a" * 199 + "\u20ac", '"\\\n')
    calls: list[tuple[str, tuple[Any, ...]]] = []
    for _ in range(3000):
        fields = {
            "token": chance.randbytes(chance.choice((16, 16, 16, 15))),
            "fingerprint": PRINT,
            "attempt": chance.choice((1, 2, *numbers)),
            "lapsed": chance.random() < 0.1,
            "found": chance.choice(list(State)).value,
            "found_ms": chance.choice((0, 5, *numbers)),
            "retention_ms": chance.choice((0, 5, *numbers)),
            "submission": chance.random() < 0.3,
        }
        lines = tuple((chance.randbytes(3), chance.randbytes(chance.randrange(9))) for _ in range(chance.randrange(4)))
        body = chance.choice((None, b"", chance.randbytes(40)))
        answer = chance.choice((None, (chance.choice((200, 599, *numbers)), lines, body, chance.choice(numbers))))
        trace = (chance.choice(texts), chance.choice(numbers), chance.choice((None, *numbers)), chance.choice(texts))
        calls.append(("write", (chance.choice(list(State)).value, fields, answer, trace)))
        plain = (fields["token"], PRINT, fields["retention_ms"], chance.choice((None, trace)), fields["submission"])
        calls.append(("claim", plain))
    same("records", calls)


def test_the_law() -> None:
    states = [state.value for state in State]
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("move", (source, event.value, target)) for source in states for event in Event for target in states
    ]
    calls += [("lawful", (name, state)) for name in ("takeover", "outcome") for state in states]
    calls += [("lawful", ("takeover", *states[at:])) for at in range(6)]
    answers = (None, tuple(DONE))
    calls += [
        ("lawful", ("resolution", state, ttl, answer))
        for state in (None, *states)
        for ttl in (-1, 0, 1)
        for answer in answers
    ]
    calls += [("lawful", ("duration", "ttl_ms", value, least)) for value in (-1, 0, 1, 2**70) for least in (0, 1, 5)]
    same("records", calls)


def test_what_expires() -> None:
    chance = random.Random(4)
    runs = []
    for _ in range(150):
        now, steps = chance.randrange(10**9), []
        for _ in range(60):
            now += chance.choice((0, 1, 500, 3000))
            key = f"k{chance.randrange(12)}"
            steps.append(
                chance.choice(
                    [
                        ("put", (key, chance.randbytes(chance.randrange(30)), now + chance.randrange(-2000, 9000))),
                        ("get", (key, now)),
                        ("drop", (key,)),
                        ("sweep", (now, chance.randrange(1, 9))),
                    ]
                )
            )
        runs.append(("expire", (steps,)))
    same(
        "records",
        [
            *runs,
            ("expire", ([("put", ("k", b"", 2**70)), ("get", ("k", 2**69))],)),
            ("move", ("absent", "renew", "absent")),
        ],
    )
