"""Whatever is sent: the answer is the app's or a problem, never an exception, a hang or a leaked claim.

Rules of docs/contract.md: R1.2, R2.2, R5.15.
"""

import asyncio
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from oncegate.cache.memory.store import MemoryCache
from oncegate.cache.record import State
from oncegate.middleware.outcome.problem_kinds import KINDS
from oncegate.middleware.rules.errors import KeyInvalid
from oncegate.middleware.rules.keys.key import fingerprint, parse_key
from oncegate.middleware.rules.settings import Route
from testing.inside import entries_of
from tests.middleware.door import PATIENCE, Answering, Call, Door

QUICK = settings(max_examples=150, deadline=None)

OCTETS = st.binary(max_size=40)
KEYS = st.one_of(
    OCTETS,
    st.from_regex(rb'"[ !#-\[\]-~]{0,9}"(;[a-z]{1,3}(=[0-9]{1,3})?)?', fullmatch=True),
    st.sampled_from([b"k", b'"k"', b"other", b"\xff", b'"', b"," * 300]),
)
NAMES = st.sampled_from(
    [
        b"idempotency-key",
        b"x-idempotency-key",
        b"idempotency-raise-on-duplicate",
        b"idempotency-attempt",
        b"prefer",
        b"authorization",
        b"content-length",
        b"content-type",
        b"connection",
        b"x-\xe9",
    ]
)
PREFERENCES = st.sampled_from([b"wait=0", b"wait=" + b"9" * 5000, b"wait=1;=,", b"respond-async, wait=0"])
LINES = st.lists(st.tuples(NAMES, st.one_of(OCTETS, PREFERENCES, st.just(b"?1"), st.just(b"0"))), max_size=6)
PATHS = st.one_of(st.text(max_size=20), st.sampled_from(["/payments", "//payments/..", "/a/../../payments/"]))
PIECES = st.lists(
    st.one_of(OCTETS, st.sampled_from([b"x" * 200, b'{"a":', b"NaN", b"[" * 150, None])), min_size=1, max_size=4
)


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    keyed = [(b"idempotency-key", draw(KEYS))] if draw(st.booleans()) else []
    return {
        "method": draw(st.sampled_from(["POST", "PATCH", "GET", "post", "DELETE"])),
        "path": draw(PATHS).encode(),
        "headers": [*keyed, *draw(LINES)],
        "pieces": draw(PIECES),
        "query_string": draw(OCTETS),
        "raw_path": draw(st.one_of(st.none(), OCTETS)),
    }


def run(there: Door, cache: MemoryCache, sent: list[dict[str, Any]]) -> list[Call]:
    """Send them all at the same time, and see to it that nothing is left of them."""

    async def all_of_them() -> list[Call]:
        calls = [Call(**request).go(there.middleware) for request in sent]
        for call in calls:
            await call.answered()
        assert await there.middleware.drain(PATIENCE) == 0
        for key in list(entries_of(cache)):
            found = await cache.get(key)
            assert found is not None
            assert found.record.state is not State.IN_FLIGHT, "a claim leaked"
            assert not found.record.lapsed
        return calls

    calls = asyncio.run(all_of_them())
    assert there.slots == 0
    return calls


@QUICK
@given(st.lists(requests(), min_size=1, max_size=4), st.sampled_from([201, 500, 502, 429]), st.booleans())
def test_any_requests_get_the_app_s_answer_or_a_problem(sent: list[dict[str, Any]], status: int, as_json: bool) -> None:
    strict = {"path": "/payments", "on_missing_key": "reject", "on_error": "replay", "on_unknown": "retry"}
    cache = MemoryCache()
    there = Door(
        Answering(status),
        cache,
        "n",
        routes=[Route.model_validate(strict)],
        aliases=["X-Idempotency-Key"],
        max_request_body=300,
        max_result=8,
        fingerprint="json" if as_json else "raw",
    )
    for request, call in zip(sent, run(there, cache, sent), strict=True):
        if not call.messages:
            assert None in request["pieces"], "only a request that was cut short has no answer"
            continue
        assert call.done
        if call.value("content-type") == "application/problem+json":
            assert KINDS[call.code].status == call.status
        else:
            assert call.status == status
            assert call.body.startswith(b"answer ")


UNSTORED = {b"connection", b"keep-alive", b"te", b"trailer", b"upgrade", b"date", b"set-cookie"}
HEADERS = st.lists(
    st.tuples(
        st.from_regex(rb"[A-Za-z][A-Za-z0-9-]{0,8}", fullmatch=True).filter(lambda name: name.lower() not in UNSTORED),
        st.binary(max_size=20),
    ),
    max_size=8,
)


@QUICK
@given(st.lists(st.binary(max_size=60), max_size=5), HEADERS, st.sampled_from([200, 201, 204, 299, 301, 399]))
def test_any_response_is_replayed_byte_for_byte(
    chunks: list[bytes], lines: list[tuple[bytes, bytes]], status: int
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": lines})
        for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b""})

    async def twice() -> tuple[Call, Call]:
        there = Door(app, MemoryCache(), "n")
        return await there.send(), await there.send()

    first, replay = asyncio.run(twice())
    assert (first.status, first.body) == (replay.status, replay.body) == (status, b"".join(chunks))
    end_to_end = [(name.lower(), value) for name, value in lines]
    assert replay.replayed
    assert first.headers[: len(lines)] == replay.headers[: len(lines)] == end_to_end


@QUICK
@given(st.binary(max_size=300))
def test_any_key_is_one_of_1_to_255_printable_characters_or_invalid(value: bytes) -> None:
    try:
        key = parse_key(value)
    except KeyInvalid:
        return
    assert 1 <= len(key) <= 255
    assert key.isascii()
    assert key.isprintable()
    escaped = key.replace("\\", r"\\").replace('"', r"\"")
    assert parse_key(f'"{escaped}"'.encode()) == key


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


def of(body: bytes) -> bytes:
    return fingerprint("POST", b"/", b"", body, as_json=True)


def shuffled(value: Any, draw: st.DataObject) -> Any:
    if isinstance(value, dict):
        names = draw.draw(st.permutations(list(value)))
        return {name: shuffled(value[name], draw) for name in names}
    return [shuffled(item, draw) for item in value] if isinstance(value, list) else value


@QUICK
@given(VALUES, st.data())
def test_json_with_members_permuted_spaced_and_escaped_otherwise_is_the_same(value: Any, data: st.DataObject) -> None:
    plain = json.dumps(value, separators=(",", ":")).encode()
    spaced = json.dumps(
        shuffled(value, data), indent=data.draw(st.integers(0, 3)), ensure_ascii=data.draw(st.booleans())
    )
    try:
        again = spaced.encode()
    except UnicodeEncodeError:  # a lone surrogate has but one spelling
        return
    assert of(plain) == of(b" \n" + again + b"\t")


@QUICK
@given(VALUES, st.data())
def test_json_with_any_other_digit_is_another(value: Any, data: st.DataObject) -> None:
    body = json.dumps({"value": value, "id": 1234567890123456789, "rate": 1.25}).encode()
    at = data.draw(st.sampled_from([at for at, octet in enumerate(body) if chr(octet).isdigit()]))
    digit = data.draw(st.sampled_from([octet for octet in b"123456789" if octet != body[at]]))
    other = body[:at] + bytes((digit,)) + body[at + 1 :]
    assert of(body) != of(other)
