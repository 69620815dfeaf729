"""What a gateway may log, at debug level too: JSON lines without a secret. Every gateway of these tests is held to it."""

import json
from typing import Any

from testing.caller import BODY_MARK, CALLER_MARK, KEY_MARK, PASSWORD_MARK

NEVER_LOGGED = [KEY_MARK, CALLER_MARK, BODY_MARK.decode(), PASSWORD_MARK, "Bearer", "Traceback"]


def events(log: str) -> list[dict[str, Any]]:
    """The events in ``log``. Raises `AssertionError` for a line that is none, and for what is never logged."""
    lines = log.splitlines()
    for mark in NEVER_LOGGED:
        assert [line[:300] for line in lines if mark.lower() in line.lower()][:5] == [], f"{mark!r} is never logged"
    assert [line[:300] for line in lines if not line.startswith("{")][:5] == [], "no JSON"
    return [json.loads(line) for line in lines]
