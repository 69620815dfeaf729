"""What the gateways of the whole run have logged at debug level: much, and no secret. Runs after all others here."""

import json
from pathlib import Path

import pytest

from tests.system.caller import BODY_MARK, CALLER_MARK, KEY_MARK, PASSWORD_MARK

MARKS = [KEY_MARK, CALLER_MARK, BODY_MARK.decode(), PASSWORD_MARK, "Bearer", "Traceback"]


@pytest.fixture
def lines(logs: Path) -> list[str]:
    return [line for log in sorted(logs.iterdir()) for line in log.read_text("utf-8").splitlines()]


def test_gateways_log_json_lines_that_name_records(lines: list[str]) -> None:
    if not lines:
        pytest.skip("no gateway has run")
    told = [json.loads(line) for line in lines if line.startswith("{")]
    assert [line for line in lines if not line.startswith("{")] == []
    assert any(event.get("record") and event["level"] == "DEBUG" for event in told)


@pytest.mark.parametrize("mark", MARKS)
def test_no_key_no_credential_no_body_and_no_traceback_is_ever_logged(lines: list[str], mark: str) -> None:
    if not lines:
        pytest.skip("no gateway has run")
    assert [line[:300] for line in lines if mark.lower() in line.lower()][:5] == []
