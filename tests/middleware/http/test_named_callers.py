"""Callers that the app itself names, by the ASGI scope, in place of a scope's headers.

Rules of docs/contract.md: R4.13, R4.27, R6.11, R6.12, R6.13, R6.14.
"""

import logging
from typing import Any
from uuid import UUID

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, AuthenticationError, SimpleUser
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route as Path

from oncegate import IdempotencyMiddleware, IdempotencySettings, MemoryCache, Route
from oncegate.cache.record import State
from oncegate.fastapi import document
from oncegate.middleware.rules.keys.key import caller_scope, record_key
from testing.asgi_client import Client
from tests.middleware.conftest import MakeDoor
from tests.middleware.door import Answering, Door


def user(scope: dict[str, Any]) -> Any:
    return scope["user"]


async def test_a_caller_is_who_the_app_says(door: MakeDoor) -> None:
    there = door(app := Answering(201), caller=user)
    for number, name in enumerate(("alice", "bob"), 1):
        token = [("authorization", f"Bearer {name} {number}")]
        first = await there.send(user=name, headers=token)
        again = await there.send(user=name, headers=[("authorization", "Bearer of a later login"), ("cookie", "a=b")])
        assert (first.body, first.replayed) == (b"answer %d" % number, False)
        assert (again.body, again.replayed) == (first.body, True)
    assert app.calls == 2


async def test_a_name_is_a_text_a_number_or_a_uuid(door: MakeDoor) -> None:
    identifier = UUID(int=7)
    there = door(app := Answering(201), caller=user)
    for name in (7, "a", identifier):
        assert not (await there.send(user=name)).replayed
    for name in ("7", "a", str(identifier)):
        assert (await there.send(user=name)).replayed
    for name in (0, "0 ", "é", "\ud800", "x" * 10_000):
        assert not (await there.send(user=name)).replayed
    assert app.calls == 8


@pytest.mark.parametrize("nobody", [None, ""])
@pytest.mark.parametrize("headers", [[], [("authorization", "Bearer a")], [("cookie", "session=a")]])
async def test_nobody_has_no_key(door: MakeDoor, nobody: str | None, headers: list[tuple[str, str]]) -> None:
    there = door(app := Answering(201), caller=user)
    answer = await there.send(user=nobody, headers=headers)
    assert (answer.status, answer.code, answer.value("www-authenticate")) == (401, "caller-missing", "Login")
    assert "log in" in answer.problem["detail"]
    assert app.calls == 0


async def test_a_cookie_alone_is_somebody_who_is_logged_in(door: MakeDoor) -> None:
    there = door(Answering(201), caller=user)
    assert (await there.send(user="alice", headers=[("cookie", "session=a")])).status == 201
    assert not (await there.send(user="bob", headers=[("cookie", "session=a")])).replayed


async def test_no_header_reaches_a_caller_s_record(door: MakeDoor) -> None:
    by_name, by_header = door(Answering(201), caller=user), door(app := Answering(201))
    await by_name.send(user="alice")
    for value in ("alice", "caller", "6:caller5:alice", "5:alice"):
        assert not (await by_header.send(headers=[("authorization", value)])).replayed
    assert app.calls == 4


async def test_requests_without_a_key_ask_for_no_caller(door: MakeDoor) -> None:
    scopes: list[Any] = []
    there = door(Answering(201), caller=scopes.append)
    for request in ({"key": None}, {"method": "GET"}, {"key": None, "headers": [("cookie", "a=b")]}):
        assert (await there.send(**request)).status == 201
    assert scopes == []
    assert (await there.send()).code == "caller-missing"
    assert len(scopes) == 1


async def test_a_key_that_is_made_here_belongs_to_its_caller(door: MakeDoor) -> None:
    there = door(Answering(201), caller=user, on_missing_key="generate")
    assert (await there.send(key=None, user=None)).code == "caller-missing"
    made = (await there.send(key=None, user="alice")).value("idempotency-key")
    assert made is not None
    assert (await there.send(key=made, user="alice")).replayed
    assert not (await there.send(key=made, user="bob")).replayed


class Panic(BaseException):
    """As extensions raise it that were not written in Python."""


@pytest.mark.parametrize("error", [KeyError("hunter2"), ValueError("hunter2"), Panic("hunter2")])
async def test_one_that_raises_is_a_500_that_tells_nothing(
    door: MakeDoor, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def caller(scope: dict[str, Any]) -> str:
        raise error

    there = door(app := Answering(201), caller=caller)
    await refused(there, app)
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert line.startswith(f"caller raised {type(error).__qualname__} at test_named_callers.py:")
    assert "hunter2" not in caplog.text


async def refused(there: Door, app: Answering) -> None:
    answer = await there.send(user=None)
    assert (answer.status, answer.code, answer.problem["retryable"]) == (500, "caller-failed", False)
    assert b"hunter2" not in answer.body
    assert answer.value("idempotency-key") == "k-1"
    assert app.calls == there.slots == 0
    assert await there.state() is State.ABSENT


async def later(scope: dict[str, Any]) -> str:
    return "alice"


@pytest.mark.parametrize(
    ("name", "kind"),
    [(True, "bool"), (1.5, "float"), (b"a", "bytes"), (object(), "object"), (["a"], "list"), (later, "coroutine")],
)
async def test_one_that_gives_no_name_is_a_500(
    door: MakeDoor, name: Any, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    there = door(app := Answering(201), caller=lambda scope: name(scope) if name is later else name)
    await refused(there, app)
    assert f"caller gave a {kind}: give a str, an int, a UUID or None" in caplog.messages


async def test_what_ends_the_process_does_so() -> None:
    def caller(scope: dict[str, Any]) -> str:
        raise KeyboardInterrupt

    there = IdempotencyMiddleware(Answering(201), cache=MemoryCache(), caller=caller)
    with pytest.raises(KeyboardInterrupt):
        await Client("POST", b"/", [(b"idempotency-key", b"k")]).call(there)


class AsyncCaller:
    async def __call__(self, scope: dict[str, Any]) -> str:
        return "alice"


def test_what_is_passed_is_looked_at() -> None:
    app: Any = Answering(201)
    given: list[tuple[Any, str]] = [
        ("user", "caller is a str: give a function of the ASGI scope"),
        (later, "caller is a coroutine function: give a function of the ASGI scope, which awaits nothing"),
        (AsyncCaller(), "caller is a coroutine function: give a function of the ASGI scope, which awaits nothing"),
    ]
    for caller, text in given:
        with pytest.raises(TypeError, match=f"^{text}$"):
            IdempotencyMiddleware(app, cache=MemoryCache(), caller=caller)
    two_ways: list[dict[str, Any]] = [
        {"settings": IdempotencySettings(scope=["header:Authorization"])},
        {"routes": [Route(path="/a"), Route(path="/b", scope=["header:X-Tenant"])]},
    ]
    for options in two_ways:
        with pytest.raises(ValueError, match=r"^caller takes the place of scope: give one of them$"):
            IdempotencyMiddleware(app, cache=MemoryCache(), caller=user, **options)


async def test_operators_find_a_record_by_the_name_too(door: MakeDoor) -> None:
    """As they do a command's of `CommandProcessor`."""
    there = door(Answering(201), caller=user)
    await there.send(user="alice")
    assert await there.cache.get(record_key(there.namespace, "k-1", caller_scope("alice")))


@pytest.mark.parametrize("caller", [None, user])
def test_the_app_s_description_tells_of_it(caller: Any) -> None:
    app = FastAPI()
    app.add_middleware(IdempotencyMiddleware, cache=MemoryCache(), caller=caller)
    app.post("/payments")(lambda: None)
    document(app)
    description = app.openapi()
    codes = description["components"]["schemas"]["IdempotencyProblem"]["properties"]["code"]["enum"]
    assert ("caller-failed" in codes) is (caller is not None)
    assert "caller-missing" in codes
    assert "401" in description["paths"]["/payments"]["post"]["responses"]


class Tokens(AuthenticationBackend):
    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, SimpleUser] | None:
        token = conn.headers.get("authorization")
        if token is None:
            return None
        if not token.startswith("Bearer "):
            raise AuthenticationError("not a token of ours")
        return AuthCredentials(["authenticated"]), SimpleUser(token.split()[1])


def shop(paid: list[str], *, outside: bool) -> Any:
    async def pay(request: Request) -> Response:
        paid.append(request.user.display_name)
        return JSONResponse({"paid": len(paid)}, 201)

    app = Starlette(routes=[Path("/payments", pay, methods=["POST"])])
    if not outside:
        app.add_middleware(AuthenticationMiddleware, backend=Tokens())
    app.add_middleware(IdempotencyMiddleware, cache=MemoryCache(), caller=lambda scope: scope["user"].display_name)
    if outside:
        app.add_middleware(AuthenticationMiddleware, backend=Tokens())
    return app


async def pay(app: Any, token: str | None) -> Client:
    lines = [(b"idempotency-key", b"k-1")]
    if token is not None:
        lines.append((b"authorization", token.encode()))
    return await Client("POST", b"/payments", lines).call(app)


async def test_behind_starlette_s_authentication() -> None:
    paid: list[str] = []
    app = shop(paid, outside=True)
    first, later = await pay(app, "Bearer alice old"), await pay(app, "Bearer alice new")
    assert (first.status, later.status, later.body) == (201, 201, first.body)
    assert later.values(b"idempotent-replayed") == [b"true"]
    assert (await pay(app, "Bearer bob a")).values(b"idempotent-replayed") == []
    assert (await pay(app, None)).status == 401
    assert (await pay(app, "Basic x")).status == 400, "refused in front: it takes no key"
    assert paid == ["alice", "bob"]


async def test_in_front_of_authentication_nobody_is_known_yet() -> None:
    paid: list[str] = []
    answer = await pay(shop(paid, outside=False), "Bearer alice old")
    assert (answer.status, paid) == (500, [])
    assert b'"caller-failed"' in answer.body
