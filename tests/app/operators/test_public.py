"""What everybody gets who reaches the gateway, and what is for operators unless it is opened.

Rules of docs/contract.md: R3.27, R4.37, R11.8, R11.34, R11.35.
"""

import re
from typing import Any

import pytest

from oncegate.app.cli.main import token as token_command
from oncegate.app.settings.admin_tokens import AdminToken
from testing.inside import take_for_operators_port
from testing.served import served
from testing.servers import free_port

NOWHERE = "http://127.0.0.1:1"
TOKEN = "of-an-operator-1234567890"
READER = AdminToken.of("alice", "of-alice-1234567890", writes=False).setting()
OPENED = {"metrics": ["metrics"], "policy": ["policy"], "docs": ["docs", "openapi.json"]}
CHOSEN = [path for paths in OPENED.values() for path in paths]
ALWAYS = ["healthz", "problems", "problems/in-flight"]


def by(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def test_what_operators_see_is_for_nobody_by_default_and_the_answer_says_how() -> None:
    async with served(NOWHERE, public=[]) as (client, _):
        for path in CHOSEN:
            for answer in (await client.get(f"/_oncegate/{path}"), await client.get(f"/_oncegate/{path}/")):
                assert (answer.status_code, answer.headers["www-authenticate"]) == (
                    401,
                    'Bearer realm="oncegate operators"',
                )
                for way in ("ONCEGATE_ADMIN_TOKEN", "admin_tokens", "ops_port", "public = ["):
                    assert way in answer.json()["detail"], "it says how"
        for path in ALWAYS:
            assert (await client.get(f"/_oncegate/{path}")).status_code == 200
        assert (await client.get("/_oncegate/readyz")).status_code == 503, "there is no upstream"
        assert (await client.get("/_oncegate/records/")).status_code == 404, "without operators there are none"


async def test_an_operator_s_token_opens_it_one_for_reading_too() -> None:
    async with served(NOWHERE, public=[], admin_token=TOKEN, admin_tokens=[READER]) as (client, _):
        for path in CHOSEN:
            assert (await client.get(f"/_oncegate/{path}")).status_code == 401
            assert (await client.get(f"/_oncegate/{path}", headers=by(TOKEN + "x"))).status_code == 401
            for token in (TOKEN, "of-alice-1234567890"):
                assert (await client.get(f"/_oncegate/{path}", headers=by(token))).status_code == 200
                assert (await client.head(f"/_oncegate/{path}", headers=by(token))).status_code == 200
        counted = (await client.get("/_oncegate/metrics", headers=by(TOKEN))).text
        assert f"oncegate_logins_refused_total {2.0 * len(CHOSEN)}" in counted


@pytest.mark.parametrize("name", OPENED)
async def test_what_is_public_everybody_gets(name: str) -> None:
    async with served(NOWHERE, public=[name]) as (client, _):
        for path in CHOSEN:
            expected = 200 if path in OPENED[name] else 401
            assert (await client.get(f"/_oncegate/{path}")).status_code == expected
    async with served(NOWHERE, public=[name], admin_token=TOKEN) as (client, _):
        for path in OPENED[name]:
            assert (await client.get(f"/_oncegate/{path}", headers=by("wrong"))).status_code == 200
        assert (await client.get("/_oncegate/records/")).status_code == 401, "records are never opened"


@pytest.mark.parametrize("public", [[], ["policy"]])
async def test_with_a_port_of_the_operators_the_main_port_has_what_is_public_alone(public: list[str]) -> None:
    there: dict[str, Any] = {"ops_port": free_port(), "admin_token": TOKEN, "public": public}
    async with served(NOWHERE, **there) as (client, _):
        for path in [*CHOSEN, "records/"]:
            expected = 200 if path in public else 404
            for headers in ({}, by(TOKEN)):
                assert (await client.get(f"/_oncegate/{path}", headers=headers)).status_code == expected
        for path in ALWAYS:
            assert (await client.get(f"/_oncegate/{path}")).status_code == 200
    # As one on the operators' port meets it: the very same port, taken for it.
    ops = await _on_the_operators_port(there)
    assert ops == {**dict.fromkeys([*CHOSEN, *ALWAYS], 200), "records/": 401}


async def _on_the_operators_port(settings: dict[str, Any]) -> dict[str, int]:
    async with served(NOWHERE, **settings) as (client, gateway):
        take_for_operators_port(gateway, client.base_url.port or 0)
        return {path: (await client.get(f"/_oncegate/{path}")).status_code for path in [*CHOSEN, *ALWAYS, "records/"]}


def test_the_command_that_the_answer_names_is_there() -> None:
    assert token_command.name == "token"


async def test_each_problem_has_the_id_of_its_request() -> None:
    """The client's own where that is one, and no secret; the same in the header."""
    token = AdminToken.of("alice", "of-alice-1234567890", writes=False).setting()
    refused = [("GET", "records/", "wrong", 401), ("POST", "records/x/release", "of-alice-1234567890", 403)]
    refused += [
        ("GET", "nothing", "", 404),
        ("PUT", "healthz", "", 405),
        ("GET", "records/x", "of-alice-1234567890", 400),
    ]
    async with served(NOWHERE, admin_tokens=[token]) as (client, _):
        for method, path, brought, status in refused:
            headers = by(brought) if brought else {}
            for sent, kept in (("support-17", True), ("not one", False), (brought, False), ("", False)):
                followed = {"x-request-id": sent} if sent else {}
                answer = await client.request(method, f"/_oncegate/{path}", headers=headers | followed)
                assert answer.status_code == status
                found = answer.json()["request_id"]
                assert answer.headers["x-request-id"] == found
                assert re.fullmatch("support-17" if kept else "[0-9a-f]{12}-[0-9a-f]{8}", found)
