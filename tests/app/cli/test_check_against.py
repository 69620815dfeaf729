"""``oncegate check --against``: what changes for callers, in words, route by route, against a file or a running gateway.

Rule of docs/contract.md: R10.17.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from oncegate.app.cli.check.comparison import (
    PUBLISHED,
    WORDS,
    changed,
    compared_with_gateway,
    compared_with_settings,
    example,
)
from oncegate.app.operators.pages.for_callers.policy import published
from oncegate.app.policies import gateway_policies
from oncegate.app.settings.gateway import GatewaySettings
from oncegate.middleware.rules.paths.path_pattern import PathPattern
from oncegate.middleware.rules.settings import IdempotencySettings
from testing.command_line import invoke
from testing.served import served

Lines = set[tuple[str, str]]


def settings(**given: Any) -> GatewaySettings:
    return GatewaySettings(**{"upstream": "http://127.0.0.1:9", **given})


def lines(was: dict[str, Any], now: dict[str, Any]) -> Lines:
    """What is said of callers."""
    found = compared_with_settings(settings(**was), settings(**now))
    return {(each.area, each.text) for each in found if each.area not in ("settings", "reload")}


def of_route(was: dict[str, Any], now: dict[str, Any]) -> str:
    """The only sentence about a route whose settings differ so."""
    ((whom, line),) = lines({"routes": [{"path": "/p", **was}]}, {"routes": [{"path": "/p", **now}]})
    assert whom == "PATCH, POST /p"
    return line


NOBODY = {("callers", "nothing changes for them")}


def test_nothing_changes_where_nothing_that_callers_notice_does() -> None:
    assert lines({}, {}) == NOBODY
    assert lines({}, {"max_in_flight": 5, "routes": [{"path": "/a"}]}) == NOBODY


@pytest.mark.parametrize(
    ("was", "now", "line"),
    [
        ({}, {"on_missing_key": "reject"}, "keys become required: a request without one gets 400 key-missing"),
        ({"on_missing_key": "reject"}, {}, "keys are required no more: a request without one gets no 400"),
        ({}, {"on_missing_key": "generate"}, "a request without a key is given one"),
        ({}, {"error_ttl": 7200}, "an error is kept for 2 hours (was 1 minute)"),
        ({}, {"header": "X-Key"}, "the key comes in X-Key (was Idempotency-Key)"),
        ({}, {"aliases": ["X-Key"]}, "keys are read from these, too: X-Key (was: none)"),
        (
            {},
            {"scope": ["header:X-User"]},
            "callers are told apart by headers: X-User (was: Authorization); retries of requests from before are executed again",
        ),
        ({}, {"require_scope": True}, "a caller without any of the scope's headers gets 401 caller-missing"),
        ({}, {"fingerprint": "json"}, "bodies are compared as JSON (was: bodies are compared byte by byte)"),
        (
            {},
            {"on_error": "replay"},
            "after an error a retry gets the stored error (was: after an error a retry is a new attempt)",
        ),
        (
            {},
            {"on_unknown": "retry"},
            "after an unknown outcome a retry is a new attempt (was: after an unknown outcome a retry gets 409 outcome-unknown)",
        ),
        (
            {},
            {"on_mismatch": "warn"},
            "another payload under a succeeded key gets the replay (was: another payload under a used key gets 422 key-reused)",
        ),
        ({}, {"raise_on_duplicate": True}, "a duplicate gets 409 duplicate (was: a duplicate gets the replay)"),
        ({}, {"docs_url": "https://d.example"}, "problems link to https://d.example (was /_oncegate/problems/)"),
        ({}, {"max_request_body": 5}, "max_request_body: 1048576 -> 5"),
        ({}, {"max_wait": 2.5}, "Prefer: wait is heeded up to 2.5 s (was 30 s)"),
        ({}, {"wait": 5}, "a concurrent duplicate waits for the outcome by itself, for 5 s (was 0 s)"),
        (
            {"wait": 5},
            {},
            "a concurrent duplicate gets 409 in-flight at once, unless it asks to wait (it waited for 5 s)",
        ),
        ({}, {"key_pattern": "uuid7"}, "a key of another form than uuid7 gets 400 key-invalid (was: any form)"),
        ({"key_pattern": "ulid"}, {"key_pattern": "uuid"}, "a key of another form than uuid gets 400 key-invalid (was: ulid)"),
        ({"key_pattern": "uuid7"}, {}, "a key may be of any form (was: uuid7)"),
        ({"enforce": 5}, {}, "100 % of the keys are under enforcement (was 5 %)"),
        (
            {},
            {"enforce": 0.5},
            "0.5 % of the keys are under enforcement (was 100 %); retries with the other keys are executed again",
        ),
    ],
)  # fmt: skip
def test_each_change_has_a_sentence(was: dict[str, Any], now: dict[str, Any], line: str) -> None:
    assert of_route(was, now) == line


def test_a_ttl_is_of_successes_and_of_unknown_outcomes() -> None:
    found = lines({}, {"idempotency": {"ttl": 172800}})
    assert found == {
        ("PATCH, POST all other paths", "a success is kept for 2 days (was 1 day)"),
        ("PATCH, POST all other paths", "an unknown outcome is kept for 2 days (was 1 day)"),
    }


def test_statuses_are_named_where_they_count_otherwise() -> None:
    found = lines({"routes": [{"path": "/p"}]}, {"routes": [{"path": "/p", "status": {"4xx": "success"}}]})
    assert {line.partition(":")[0] for _, line in found} == {
        "statuses that are a success",
        "statuses that are an error",
        "statuses of which nothing is kept",
    }


def test_a_mode_is_said() -> None:
    async_route = {"path": "/p", "mode": "async", "on_missing_key": "reject"}
    redis = {"cache": "redis://127.0.0.1:1"}
    found = lines({"routes": [{"path": "/p"}], **redis}, {"routes": [async_route], **redis})
    sentence = "a request is accepted and executed later (202) (was: a request is executed at once)"
    assert ("PATCH, POST /p", sentence) in found


def test_a_request_comes_under_enforcement_and_leaves_it_method_by_method() -> None:
    was = {"routes": [{"path": "/x", "methods": ["PUT"]}, {"path": "/y"}]}
    now = {"routes": [{"path": "/x", "methods": ["DELETE"], "on_missing_key": "reject"}, {"path": "/y", "methods": []}]}
    assert lines(was, now) == {
        ("PUT /x", "is no longer under enforcement: keys are not looked at"),
        ("DELETE /x", "comes under enforcement; keys are required"),
        ("PATCH, POST /y", "is no longer under enforcement: keys are not looked at"),
    }


def test_a_new_route_is_compared_with_what_counted_there_before() -> None:
    """With the route that matched, not with the defaults; and one that no request meets any more, with what takes its place."""
    was = {"routes": [{"path": "/payments/*", "ttl": 3600}]}
    now = {"routes": [{"path": "/payments/{id}", "ttl": 7200}, *was["routes"], {"path": "/payments/late", "ttl": 1}]}
    both = {"PATCH, POST /payments/{id}", "PATCH, POST /payments/late"}
    assert {whom for whom, _ in lines(was, now)} == both
    assert {(whom, "a success is kept for 2 hours (was 1 hour)") for whom in both} <= lines(was, now)
    assert {whom for whom, _ in lines(now, was)} == both


@pytest.mark.parametrize(
    "pattern", ["/a", "/a/{id}", "/a/{id:int}/b", "*", "/a/*/b/*", "/{rest:path}", "/a*z", "/{a}/{b}"]
)
def test_an_example_matches_its_pattern(pattern: str) -> None:
    assert PathPattern(pattern).matches(example(pattern))


def test_a_newer_gateway_s_members_are_no_change() -> None:
    rules = {"path": "*", "methods": ["POST"], "mode": "sync"}
    assert changed({**rules, "unheard_of": 1}, rules) == []


ABOUT_WHOM = {"path", "methods"}
"""What a route is for: its requests are compared one by one."""
SAME_FOR_ALL = {("matched",), ("fingerprint", "parts")}
"""What no setting changes, and whether a request has come."""


def test_each_member_of_a_published_policy_has_words() -> None:
    """The members are those that a gateway publishes: a new one has to get words here, or a reason why it needs none."""
    policy = published(gateway_policies(settings(routes=[{"path": "/a"}])).with_methods(), "0", lambda _: True)
    members: set[tuple[str, ...]] = set()
    for name, value in json.loads(policy)["routes"][0].items():
        if name not in ABOUT_WHOM:
            members |= {(name, inner) for inner in value} if isinstance(value, dict) else {(name,)}
    assert members - SAME_FOR_ALL == WORDS.keys()


def test_each_setting_of_a_route_is_compared_once() -> None:
    """Either by its policy or among the rest: what is published by another name is not said twice."""
    names = set(IdempotencySettings.model_fields)
    assert names >= PUBLISHED
    assert {"shadow", "lease", "response_timeout"} <= names - PUBLISHED


def test_a_gateway_of_before_publishes_less_and_what_is_null_differs_from_that() -> None:
    rules: dict[str, Any] = {"path": "*", "methods": ["POST"], "mode": "sync"}
    assert changed(rules, {**rules, "key_pattern": None, "wait": {"by_default": 5}}) == []
    assert changed({**rules, "key_pattern": None}, {**rules, "key_pattern": "uuid"}) != []


# -- the rest of a configuration ------------------------------------------------------------------------------------------


def test_what_a_reload_would_make_of_it_is_said() -> None:
    found = compared_with_settings(settings(), settings(max_in_flight=5))
    assert [(each.area, each.severity.value) for each in found] == [
        ("callers", "good"),
        ("settings", "advice"),
        ("reload", "good"),
    ]
    assert found[1].text == "max_in_flight: 1000 -> 5"
    *_, wait = compared_with_settings(settings(), settings(port=1))
    assert (wait.severity.value, wait.text) == ("advice", "port: in effect after a restart alone")
    secret = "a secret of 32 bytes, or of more than it"
    *found, refused = compared_with_settings(settings(), settings(secret=secret))
    assert (refused.severity.value, "under another secret" in refused.text) == ("failed", True)
    assert secret not in str(found)


# -- the command ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    texts = {
        "old": "",
        "same": "",
        "new": "[[routes]]\npath = '/payments'\non_missing_key = 'reject'\n",
        "wrong": "x = 1\n",
        "other secret": "secret_file = '/dev/null'\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(f"upstream = 'http://127.0.0.1:9'\n{text}")
    return {name: str(tmp_path / name) for name in texts}


@pytest.mark.parametrize(
    ("new", "old", "strict", "code"),
    [
        ("new", "old", False, 0),
        ("new", "old", True, 1),
        ("same", "old", True, 0),
        ("wrong", "old", False, 2),
        ("new", "wrong", False, 2),
    ],
)
def test_the_exit_code_says_whether_something_changes(
    new: str, old: str, strict: bool, code: int, files: dict[str, str]
) -> None:
    done = invoke("check", "--config", files[new], "--against", files[old], "--json", *(["--strict"] if strict else []))
    assert done.returncode == code
    findings = json.loads(done.stdout)["findings"]
    if "wrong" in (new, old):
        assert "unknown setting" in findings[0]["text"]
        assert files["wrong"] in findings[0]["text"]
    elif new == "new":
        assert findings[0] == {
            "area": "PATCH, POST /payments",
            "verdict": "advice",
            "text": "keys become required: a request without one gets 400 key-missing",
        }


async def test_a_gateway_is_compared_by_what_it_publishes() -> None:
    async with served("http://127.0.0.1:9") as (client, _):
        url = str(client.base_url)
        found = await _compared(
            url, settings(routes=[{"path": "/p", "ttl": 3600, "key_pattern": "uuid", "max_result": 1}])
        )
        assert {(each.area, each.text) for each in found[:-1]} == {
            ("PATCH, POST /p", "a success is kept for 1 hour (was 1 day)"),
            ("PATCH, POST /p", "an unknown outcome is kept for 1 hour (was 1 day)"),
            ("PATCH, POST /p", "a key of another form than uuid gets 400 key-invalid (was: any form)"),
        }
        assert "limits and time-outs are not published" in found[-1].text
        (callers, same) = await _compared(url, settings(public=["metrics", "policy", "docs"]))
        assert callers.text == "nothing that is published changes for them"
        assert same.text.startswith("runs by this configuration, ")
    (away,) = await _compared(url, settings())
    assert (away.area, away.severity.value) == ("gateway", "failed")


async def _compared(url: str, now: GatewaySettings) -> Any:
    """(In a thread: the client of the command line blocks.)"""
    return await asyncio.to_thread(lambda: asyncio.run(compared_with_gateway(url, now)))
