"""What was stored for a request is shown on request alone, and who looked is in the audit: by the API and by the command line.

Rules of docs/contract.md: R11.66.
"""

import asyncio
import json
from typing import Any

import pytest

from testing.command_line import OPERATOR as BY
from testing.command_line import invoke
from testing.servers import RedisServer
from tests.app.operators.test_dead_letters import COMMAND, OPERATOR, Letters, described
from tests.app.submitted import Submitted

SECRET = "paid-to-alice"


async def seen(there: Submitted) -> list[tuple[str, str, str]]:
    """Who has looked at what, the newest first."""
    lines = described(await there.client.get("/_oncegate/audit/", headers=OPERATOR), 200)["lines"]
    return [(line["operator"], line["what"], line["done"]) for line in lines]


async def executed(there: Submitted) -> str:
    """The id of a command that has succeeded with a result."""
    identifier: str = (await there.submit()).json()["command"]
    begun = await there.consumer.begin(await there.delivery(identifier))
    await begun.execution.succeed(b'{"result": "%s"}' % SECRET.encode())
    return identifier


async def get(there: Submitted, path: str, **query: Any) -> Any:
    answer = await there.client.get(f"/_oncegate/{path}", params=query, headers=OPERATOR)
    return described(answer, 200)


@pytest.fixture
def where(submitted: Submitted, redis_server: RedisServer) -> list[str]:
    return ["--cache", redis_server.url, "--namespace", submitted.namespace, "--json"]


async def test_a_stored_response_is_shown_on_request_and_each_look_is_audited(
    submitted: Submitted, caplog: pytest.LogCaptureFixture
) -> None:
    identifier = (await submitted.submit()).json()["command"]
    shown = await get(submitted, f"records/{identifier}")
    assert ("response" in shown, shown["status"]) == (False, 202)
    assert await seen(submitted) == []
    for number in (1, 2):
        shown = await get(submitted, f"records/{identifier}", response="true")
        assert shown["response"]["body"]["command"] == identifier
        assert await seen(submitted) == [("", f"record {identifier}", "its stored response shown")] * number
    assert caplog.text.count(f"record {identifier}: its stored response shown by an operator") == 2


async def test_by_the_command_line_too(submitted: Submitted, where: list[str]) -> None:
    identifier = (await submitted.submit()).json()["command"]
    for option, count in ((), 0), (("--response",), 1):
        done = await asyncio.to_thread(invoke, "keys", "show", "--record", identifier, *option, *where)
        (record,) = json.loads(done.stdout)["records"]
        assert ("response" in record) == bool(option)
        line = f"oncegate.audit: record {identifier}: its stored response shown by {BY}\n"
        assert done.stderr == line * count
        assert await seen(submitted) == [(BY, f"record {identifier}", "its stored response shown")] * count


async def test_a_result_that_an_operator_sees_of_a_command_is_audited_and_its_caller_s_look_is_not(
    submitted: Submitted,
) -> None:
    location = f"/_oncegate/commands/{(identifier := await executed(submitted))}"
    assert SECRET in str(await submitted.status(location))
    assert await seen(submitted) == []
    assert SECRET in str(await submitted.status(location, **OPERATOR))
    assert await seen(submitted) == [("", f"record {identifier}", "its stored response shown")]


@pytest.mark.parametrize("by_way_of", ["gateway", "command line"])
async def test_a_dead_letter_s_payload_is_shown_on_request_and_each_look_is_audited(
    submitted: Submitted, redis_server: RedisServer, where: list[str], by_way_of: str
) -> None:
    letters = Letters(submitted, redis_server)
    letter = letters.add(COMMAND)
    for body, count in (False, 0), (True, 1):
        if by_way_of == "gateway":
            shown = str(await letters.get(letter, stream="commands", body=body))
        else:
            option = ("--body",) if body else ()
            done = await asyncio.to_thread(invoke, "commands", "show", letter, *option, *where)
            shown = done.stdout
            assert ("its key and payload shown" in done.stderr) == body
        assert ("secret-key" in shown, "secret" in shown) == (body, body)
        by = "" if by_way_of == "gateway" else BY
        line = (by, f"dead letter {letter} of command {COMMAND}", "its key and payload shown")
        assert await seen(submitted) == [line] * count


async def test_what_is_not_there_or_holds_nothing_has_no_line(submitted: Submitted, redis_server: RedisServer) -> None:
    absent = f"{'a' * 20}:{'b' * 20}"
    for path in (f"records/{absent}?response=true", f"dead-letters/{absent}?stream=commands&body=true"):
        assert (await submitted.client.get(f"/_oncegate/{path}", headers=OPERATOR)).status_code == 404
    location = (await submitted.submit()).headers["location"]
    await submitted.status(location, **OPERATOR)
    assert await seen(submitted) == []
