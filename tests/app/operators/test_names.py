"""Operators by name: who may read and who may write, and who changed what, kept with the record and in the log.

Rules of docs/contract.md: R11.21, R11.22.
"""

import logging
from typing import Any

import httpx
import pytest

from oncegate.app.settings.admin_tokens import AdminToken, new_token, parse
from oncegate.app.settings.gateway import GatewaySettings
from testing.command_line import invoke
from testing.served import served
from testing.upstreams import Upstream, resetting_after
from tests.app.operators.test_records import unknown

ALICE, BOB, OLD_BOB = (new_token() for _ in range(3))
TOKENS = (
    AdminToken.of("alice", ALICE, writes=False).setting(),
    AdminToken.of("bob", BOB).setting(),
    AdminToken.of("bob", OLD_BOB).setting(),
)


def by(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def post(client: httpx.AsyncClient, path: str, token: str, document: dict[str, Any]) -> httpx.Response:
    return await client.post(f"/_oncegate/records/{path}", json=document, headers=by(token))


async def test_who_may_read_changes_nothing() -> None:
    async with Upstream(resetting_after()) as upstream, served(upstream.url, admin_tokens=TOKENS) as (client, _):
        record = await unknown(client)
        documents: dict[str, dict[str, Any]] = {"release": {}, "resolve": {"as": "failed"}}
        for action, document in documents.items():
            refused = await post(client, f"{record}/{action}", ALICE, document)
            assert (refused.status_code, refused.json()["detail"]) == (403, "The token of alice is for reading.")
        assert (await post(client, "find", ALICE, {"key": "k-1"})).json()["ids"] == [record]
        shown = await client.get(f"/_oncegate/records/{record}", headers=by(ALICE))
        assert shown.json()["state"] == "unknown"
        assert (await post(client, f"{record}/release", OLD_BOB, {})).status_code == 200


async def test_what_is_nobody_s_token_opens_nothing() -> None:
    async with served("http://127.0.0.1:1", admin_tokens=TOKENS) as (client, _):
        for token in ("wrong", "alice", "bob:write", TOKENS[1]):
            refused = await client.get("/_oncegate/records/", headers=by(token))
            challenge = refused.headers["www-authenticate"]
            assert (refused.status_code, challenge) == (401, 'Bearer realm="oncegate operators"')


async def test_a_record_and_a_line_of_the_log_say_who_resolved_it_and_why(caplog: pytest.LogCaptureFixture) -> None:
    async with Upstream(resetting_after()) as upstream, served(upstream.url, admin_tokens=TOKENS) as (client, _):
        record = await unknown(client)
        with caplog.at_level(logging.WARNING, "oncegate.audit"):
            done = await post(client, f"{record}/resolve", BOB, {"as": "failed", "reason": "the bank says no"})
        assert done.status_code == 200
        shown = (await client.get(f"/_oncegate/records/{record}", headers=by(ALICE))).json()
        assert shown["note"] == "resolved by bob: the bank says no"
        assert f"record {record}: resolved to failed by bob: the bank says no" in caplog.text
        assert BOB not in caplog.text


async def test_a_reason_is_one_line() -> None:
    async with Upstream(resetting_after()) as upstream, served(upstream.url, admin_tokens=TOKENS) as (client, _):
        record = await unknown(client)
        for reason in ("x" * 121, "two\nlines", "\x1b[2J", "\u2028"):
            assert (await post(client, f"{record}/release", BOB, {"reason": reason})).status_code == 400
            done = invoke("keys", "release", "--record", record, "--reason", reason)
            assert (done.returncode, "--reason is one line" in done.stderr) == (2, True)
        assert (await client.get(f"/_oncegate/records/{record}", headers=by(BOB))).json()["state"] == "unknown"


def test_a_new_token_is_printed_once_with_the_setting_that_knows_it() -> None:
    token, setting = invoke("token", "alice", "--read").stdout.splitlines()
    assert parse(setting) == AdminToken.of("alice", token, writes=False)
    assert setting.startswith("alice:read:")
    assert token not in setting
    another, writing = invoke("token", "alice").stdout.splitlines()
    assert another != token
    assert parse(writing).writes


def test_a_name_that_would_split_a_setting_is_refused() -> None:
    done = invoke("token", "a:b")
    assert (done.returncode, done.stdout) == (2, "")
    assert "NAME has 1 to 64" in done.stderr


@pytest.mark.parametrize(
    "setting",
    [ALICE, f"alice:{ALICE}", "alice:admin:" + "0" * 64, "alice:read:" + "0" * 63, ""],
    ids=["token", "token behind a name", "no such access", "short", "empty"],
)
def test_a_token_in_the_place_of_its_digest_is_refused_and_not_repeated(setting: str) -> None:
    with pytest.raises(ValueError, match="NAME:read:DIGEST") as refused:
        GatewaySettings(upstream="http://127.0.0.1:1", admin_tokens=(setting,))
    assert ALICE not in str(refused.value)


def test_one_token_is_one_operator_s() -> None:
    both = (TOKENS[0], AdminToken.of("eve", ALICE).setting())
    with pytest.raises(ValueError, match="twice"):
        GatewaySettings(upstream="http://127.0.0.1:1", admin_tokens=both)
