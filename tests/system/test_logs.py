"""What gateways log at debug level: much, and no secret. Each gateway of these tests is held to it when it has ended."""

import re
from pathlib import Path

import pytest

from oncegate.app.version import running
from testing.caller import Caller, fresh_key
from testing.gateway import Gateway
from testing.waiting import until
from tests.system.conftest import starting
from tests.system.logs import NEVER_LOGGED, events


async def test_a_gateway_logs_json_lines_that_name_records(gateway: Gateway, caller: Caller) -> None:
    def names_the_record() -> bool:
        return any(event.get("record") == record and event["level"] == "DEBUG" for event in events(gateway.text()))

    key = fresh_key()
    await caller.post(gateway, key)
    record = (await caller.post(gateway, key, body=b"another")).json()["record"]
    await until(names_the_record, "the log names the record")


def test_the_first_line_says_which_build_runs_and_by_which_interpreter(gateway: Gateway) -> None:
    first = events(gateway.text())[0]["message"]
    assert re.fullmatch(r"oncegate \S+, .+, (compiled|from source), CPython [\d.]+", first)
    assert first == running()


@pytest.mark.parametrize("forbidden", [*NEVER_LOGGED, "no JSON"])
def test_a_log_that_says_what_it_must_not_is_noticed(forbidden: str) -> None:
    good = '{"level": "DEBUG", "message": "a request came", "record": "a:b"}\n'
    assert len(events(good * 2)) == 2
    leak = forbidden if forbidden == "no JSON" else f'{{"message": "{forbidden.upper()}"}}'
    with pytest.raises(AssertionError, match="(?i)" + forbidden):
        events(f"{good}{leak}\n{good}")


def test_a_gateway_that_has_said_it_fails_the_test_that_started_it(tmp_path: Path) -> None:
    def leak() -> None:
        with starting(lambda: tmp_path / "log") as start:
            gateway = start("http://127.0.0.1:9000")
            gateway.end()
            gateway.log.write_text('{"message": "Authorization: Bearer abc"}\n')

    with pytest.raises(AssertionError, match="Bearer"):
        leak()
