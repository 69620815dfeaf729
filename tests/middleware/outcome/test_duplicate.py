"""The body in a duplicate's original_result, as a JSON value, a string or base64.

Rules of docs/contract.md: R4.6, R4.7, R4.16.
"""

import base64
import json
from typing import Any

import pytest

from oncegate.cache.record import StoredResponse
from oncegate.middleware.outcome.problems import original_result
from tests.middleware.conftest import MakeDoor
from tests.middleware.door import Answering, Door

BODIES = [
    pytest.param(b'{"id": 1234567890123456789, "rate": 1.10, "e": 1E2}', id="digits of JSON"),
    pytest.param(b'[1.0, {"a": []}]', id="a list"),
    pytest.param(b"17", id="a number"),
    pytest.param(b'"text"', id="a JSON string"),
    pytest.param(b"null", id="null"),
]


async def original(there: Door) -> tuple[dict[str, Any], bytes]:
    await there.send()
    call = await there.send(headers=[("idempotency-raise-on-duplicate", "?1")])
    assert (call.status, call.code) == (409, "duplicate")
    member = call.problem["original_result"]
    assert isinstance(member, dict)
    return member, call.body


@pytest.mark.parametrize("body", BODIES)
async def test_duplicate_has_a_json_body_as_it_was_spelled(door: MakeDoor, body: bytes) -> None:
    result, raw = await original(door(Answering(201, body=body)))
    assert result["body"] == json.loads(body)
    assert b'"body":' + body in raw, "no digit is lost"
    assert "body_encoding" not in result


@pytest.mark.parametrize("body", [b"text", "caf\u00e9".encode(), b"", b'{"a": NaN}', b"\xef\xbb\xbf{}", b"[" * 5000])
async def test_duplicate_has_any_other_text_as_a_string(door: MakeDoor, body: bytes) -> None:
    result, _ = await original(door(Answering(201, body=body)))
    assert result["body"] == body.decode()
    assert "body_encoding" not in result


async def test_duplicate_has_anything_else_in_base64(door: MakeDoor) -> None:
    body = bytes(range(256))
    result, _ = await original(door(Answering(201, body=body)))
    assert (base64.b64decode(result["body"]), result["body_encoding"]) == (body, "base64")


@pytest.mark.parametrize(("number", "value"), [(10_000, True), (10_001, False)])
async def test_duplicate_has_json_of_very_many_values_as_a_string(door: MakeDoor, number: int, value: bool) -> None:
    """To find out whether it is JSON takes the event loop's time, most of it for lists within lists: up to 0.3 s for 1 MiB."""
    body = b"[" + b"1," * (number - 1) + b"1" + b" " * 10_000 + b"]"
    result, _ = await original(door(Answering(201, body=body)))
    assert result["body"] == (json.loads(body) if value else body.decode())


@pytest.mark.parametrize(
    ("unix_ms", "completed_at"),
    [
        (1, "1970-01-01T00:00:00.001+00:00"),
        (253402300799999, "9999-12-31T23:59:59.999+00:00"),
        (253402300800000, None),
        (999999999999999, None),
        (-999999999999999, None),
        (10**30, None),
        (0, None),
    ],
)
def test_an_instant_that_can_not_be_written_is_told_as_not_known(unix_ms: int, completed_at: str | None) -> None:
    """Handlers give responses of their own, and what they give is not all looked at."""
    assert original_result(StoredResponse(200, (), b"{}", unix_ms))["completed_at"] == completed_at
