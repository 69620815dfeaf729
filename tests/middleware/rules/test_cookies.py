"""Whose caller would be known by a cookie alone is not taken for nobody in particular, unless that was meant.

Rules of docs/contract.md: R4.13, R6.2, R6.4.
"""

from typing import Any

import pytest

from oncegate.middleware.rules.policy import compile_policy
from oncegate.middleware.rules.settings import IdempotencySettings, Route
from tests.middleware.conftest import MakeDoor
from tests.middleware.door import Answering

COOKIE = [("cookie", "session=alice")]
BEARER = [("authorization", "Bearer alice")]


def route(path: str, **settings: object) -> Route:
    return Route.model_validate({"path": path, **settings})


async def test_a_keyed_request_with_a_cookie_alone_is_refused(door: MakeDoor) -> None:
    there = door(app := Answering(201))
    refused = await there.send(headers=COOKIE)
    assert (refused.status, refused.code) == (401, "caller-missing")
    assert refused.value("www-authenticate") == 'Header name="authorization"'
    assert refused.problem["detail"].endswith("a Cookie does not name one: send Authorization.")
    assert "scope" not in refused.body.decode(), "an operator's word"
    assert "alice" not in refused.body.decode()
    assert app.calls == 0


async def test_what_to_set_is_in_the_log_once(door: MakeDoor, caplog: pytest.LogCaptureFixture) -> None:
    there, other = door(Answering(201)), door(Answering(201))
    for each in (there, there, other):
        assert (await each.send(headers=COOKIE)).status == 401
    lines = [record.getMessage() for record in caplog.records if record.name == "oncegate.http"]
    assert len(lines) == 2, "once for each middleware"
    assert 'set scope to the header that names the caller (["header:Cookie"]' in lines[0]
    assert "alice" not in caplog.text


async def test_everybody_else_is_served_as_ever(door: MakeDoor) -> None:
    there = door(Answering(201))
    assert (await there.send()).status == 201, "no credential at all: one caller"
    assert (await there.send(headers=COOKIE + BEARER)).status == 201, "the scope's header tells"
    assert (await there.send(headers=COOKIE, key=None)).status == 201, "not enforced"
    assert (await there.send(headers=COOKIE, method="GET")).status == 201
    assert (await there.send(headers=[("cookies", "a"), ("set-cookie", "b=c")])).replayed


@pytest.mark.parametrize("scope", [["header:Authorization"], ["header:Cookie"], ["header:X-User"]])
async def test_an_explicit_scope_is_meant(door: MakeDoor, scope: list[str]) -> None:
    there = door(Answering(201), scope=scope)
    assert (await there.send(headers=COOKIE)).status == 201
    other = await there.send(headers=[("cookie", "session=bob")])
    assert other.replayed is ("Cookie" not in scope[0])


async def test_a_route_s_own_scope_is_explicit_there_and_nowhere_else(door: MakeDoor) -> None:
    routes = [route("/told", scope=["header:X-User"]), route("/other", ttl=5)]
    there = door(Answering(201), routes=routes)
    assert (await there.send(headers=COOKIE, path="/told")).status == 201
    assert (await there.send(headers=COOKIE, path="/other")).code == "caller-missing"
    assert (await there.send(headers=COOKIE, path="/third")).code == "caller-missing"
    there = door(Answering(201), routes=routes, scope=["header:Authorization"])
    assert (await there.send(headers=COOKIE, path="/other", key="k-2")).status == 201


async def test_a_key_that_was_made_here_is_no_other_s(door: MakeDoor) -> None:
    there = door(Answering(201), on_missing_key="generate")
    made = await there.send(headers=COOKIE, key=None)
    assert made.status == 201
    assert (await there.send(headers=COOKIE, key=made.value("idempotency-key"))).code == "caller-missing"


@pytest.mark.parametrize("mode", ["async", "either"])
async def test_nor_is_a_command_accepted_from_it(door: MakeDoor, mode: str) -> None:
    submit, app = Answering(202), Answering(201)
    there = door(app, submit=submit, routes=[route("/payments", mode=mode, on_missing_key="reject")])
    headers = [*COOKIE, ("prefer", "respond-async")]
    assert (await there.send(headers=headers)).code == "caller-missing"
    assert (app.calls, submit.calls) == (0, 0)
    there = door(
        app, submit=submit, routes=[route("/payments", mode=mode, on_missing_key="reject", scope=["header:X-User"])]
    )
    assert (await there.send(headers=headers)).status == 202


def test_settings_that_are_equal_do_the_same() -> None:
    """What a setting says stands in its value, and not in whether it was written."""
    default, written = IdempotencySettings(), IdempotencySettings(**IdempotencySettings().model_dump())
    assert default == written
    assert compile_policy(default) == compile_policy(written)
    explicit = IdempotencySettings(scope=["header:Authorization"])
    assert explicit != default
    assert list(explicit.scope_parts) == list(default.scope_parts)
    off = Route(path="/x", methods=[])
    assert Route(path="/x", methods=[], mode="sync", ttl=None) == off
    with pytest.raises(ValueError, match="no other setting counts"):
        Route(path="/x", methods=[], ttl=5)


@pytest.mark.parametrize(
    ("base", "overrides", "explicit"),
    [
        ({}, {}, False),
        ({"ttl": 5}, {"ttl": 6}, False),
        ({"scope": ["header:Authorization"]}, {}, True),
        ({}, {"scope": ["header:Authorization"]}, True),
    ],
)
def test_what_was_written_is_told_from_what_is_default(base: dict[str, Any], overrides: Any, explicit: bool) -> None:
    settings = route("/a", **overrides).settings(IdempotencySettings(**base))
    assert (settings.scope is not None) is explicit
    assert settings.ttl == overrides.get("ttl", base.get("ttl", 86400))
    assert (b"cookie" in compile_policy(settings).wanted) is not explicit
