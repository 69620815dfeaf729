"""Every decision, under every setting that has a say in it, and every answer: the same from both builds."""

import random
from itertools import product
from typing import Any

import pytest

from oncegate.cache.record import State
from oncegate.middleware.outcome.problem_kinds import KINDS
from tests.builds.both import same

pytestmark = pytest.mark.compiled

LINES = ((b"content-type", b"application/json"), (b"x-id", b"caf\xe9"), (b"x-id", b""))
KEPT = (None, (201, LINES, b'{"a":1.0}', 1_700_000_000_250), (500, (), b"\xff", 1), (200, LINES, None, 0))
YES_NO = (False, True)


def test_the_gate() -> None:
    states = [state.value for state in State]
    same("decisions", [("gate", given) for given in product(states, KEPT, YES_NO, YES_NO, YES_NO)])


def test_problems() -> None:
    texts = (None, "", "k", "\u20ac", "\ud800", '"')
    calls: list[tuple[str, tuple[Any, ...]]] = []
    for slug in (*KINDS, "none-such"):
        for text, retryable in product(texts, (None, True, False)):
            given = {"docs_url": "https://d/" + (text or ""), "key": text, "record": text, "retryable": retryable}
            calls += [
                ("problem", (slug, text or "", given)),
                ("problem", (slug, "", given | {"extra": {"a": text, "status": 1}})),
            ]
    digits = b"12345678901234567890123"
    bodies = (None, b"", b"1.00", digits, b"{", b"text", b"\xff", b"\xef\xbb\xbf{}", b"[" * 2000, b'"\\ud800"', b"NaN")
    times = (0, 1, -1, 999, 1_700_000_000_250, 253402300799999, 253402300800000, 10**17, 2**63, 10**400, -(10**14))
    calls += [("result", (200, LINES, body, moment)) for body in bodies for moment in times]
    same("decisions", calls)


def test_responses() -> None:
    chance = random.Random(1)
    names = b"content-type connection keep-alive date set-cookie x-a x-b idempotent-replayed idempotency-key trailer te".split()
    names += [b"Idempotent-Replayed", b""]
    values = (b"x-a", b"close, X-B", b" x-a ,,", b"", b"\xff", b"keep-alive")
    calls = []
    for _ in range(2500):
        headers = [(chance.choice(names), chance.choice(values)) for _ in range(chance.randrange(7))]
        settings = {"drop_headers": chance.choice(([], ["X-A"])), "aliases": chance.choice(([], ["X-B"]))}
        status = chance.choice((200, 201, 302, 401, 404, 429, 500, 502, 504, 599, 600, -1, 0, 10**20))
        left = chance.choice((0, 1, 999, 1000, 86_400_000, -1, -1000, 10**30))
        calls.append(("responses", (status, headers, chance.choice((None, b"", b"body")), settings, left)))
    same("decisions", calls)


def test_whole_exchanges() -> None:
    """Each with a record that is there already, now and then a damaged one."""
    chance = random.Random(2)
    calls = []
    for _ in range(1500):
        settings = {
            "on_error": chance.choice(("retry", "replay")),
            "on_unknown": chance.choice(("retry", "refuse")),
            "on_mismatch": chance.choice(("reject", "warn")),
            "fingerprint": chance.choice(("raw", "json")),
            "raise_on_duplicate": chance.random() < 0.2,
            "on_cache_down": chance.choice(("fail_open", "fail_closed")),
            "max_result": chance.choice((4, 1_000_000)),
        }
        state = chance.choice(("in-flight", "succeeded", "succeeded", "failed", "unknown"))
        mismatch, submission = chance.random() < 0.2, chance.random() < 0.2
        stored = (state, chance.choice(KEPT), chance.choice((1, 4999, 5000, 5001, 90_000)), mismatch, submission)
        damage = (chance.randrange(10**6), chance.choice((0, 0, 1, 0x80, 0xFF)))
        more = chance.choice(
            ([], [(b"authorization", b"me")], [(b"idempotency-raise-on-duplicate", b"?1")], [(b"prefer", b"wait=0")])
        )
        chunks = [chance.choice((b"", b"abc", b"defg")) for _ in range(chance.randrange(3))]
        answer = chance.choice(((chance.choice((201, 401, 500, 502)), list(LINES), chunks), "value", "os", "type"))
        calls.append(
            ("exchange", (settings, chance.choice((None, stored, stored)), damage, (more, b'{"a":1}'), answer))
        )
    same("decisions", calls)
