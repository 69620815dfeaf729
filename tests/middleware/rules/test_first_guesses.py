"""What everybody writes first works, or is refused where it is written, in a line that says what to write.

Rules of docs/contract.md: R12.42.
"""

from datetime import timedelta
from typing import Any, cast

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from pydantic import ValidationError
from starlette.applications import Starlette

from oncegate import (
    Delivery,
    IdempotencyMiddleware,
    IdempotencySettings,
    JwtSettings,
    MemoryCache,
    Route,
    idempotent,
    open_cache,
)
from oncegate.app.cli.audit import author
from oncegate.app.operators.audit import REASON
from oncegate.client import RetryBudget
from oncegate.fastapi import document, protect
from oncegate.sql import Inbox
from testing.inside import maintenance_of


def test_a_route_takes_its_path_by_place() -> None:
    guess: Any = Route
    assert guess("/x") == Route(path="/x")
    assert guess("/x", ttl=5) == Route(path="/x", ttl=5)
    with pytest.raises(TypeError, match="all else by name"):
        guess("/x", 5)
    with pytest.raises(ValidationError, match="path"):
        guess()


def test_a_time_may_be_a_timedelta() -> None:
    day: Any = timedelta(days=1)
    assert IdempotencySettings(ttl=day) == IdempotencySettings(ttl=86400)
    assert Route(path="/x", lease=day).lease == 86400
    with pytest.raises(ValidationError, match="greater than 0"):
        IdempotencySettings(ttl=-day)


def test_a_scope_s_part_without_its_kind_says_what_to_write() -> None:
    with pytest.raises(ValidationError, match='write "header:Authorization" for a header'):
        IdempotencySettings(scope=["Authorization"])


def test_a_decorator_without_brackets_says_what_to_write() -> None:
    guess: Any = idempotent
    with pytest.raises(TypeError, match="@idempotent\\(key="):
        guess(lambda: None)

    with pytest.raises(TypeError, match="in brackets"):
        guess(lambda key: key, key=lambda key: key, cache="memory://")


def test_a_wsgi_app_is_refused() -> None:
    def wsgi(environ: Any, start_response: Any) -> list[bytes]:
        return []

    class Flask:
        def __call__(self, environ: Any, start_response: Any) -> Any: ...

    for app in (wsgi, Flask()):
        with pytest.raises(TypeError, match="WSGI"):
            IdempotencyMiddleware(app, cache=MemoryCache())  # type: ignore[arg-type]  # what is to be refused

    async def asgi(scope: Any, receive: Any, send: Any) -> None: ...

    async def open_to_all(*given: Any) -> None: ...

    for right in (asgi, open_to_all):
        IdempotencyMiddleware(right, cache=MemoryCache())


@pytest.mark.parametrize("name", ["eve\noncegate.audit: x", "eve\r", "\u202eeve", "e\u2066ve", "\u200beve"])
def test_a_name_in_the_environment_makes_no_audit_line_of_its_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", name)
    assert author("").name.isprintable()
    assert "eve" in author("").name.replace("?", "")
    assert not REASON.fullmatch(f"because {name}".replace("oncegate", ""))


def test_a_reason_in_any_language_is_one() -> None:
    for reason in ("", "Überweisung doppelt", "返金", "إعادة", "👍"):
        assert REASON.fullmatch(reason)


async def _app(scope: Any, receive: Any, send: Any) -> None: ...


def test_a_time_that_a_class_takes_may_be_a_timedelta_and_nothing_that_is_no_time() -> None:
    guess: Any = IdempotencyMiddleware
    minute: Any = timedelta(minutes=1)
    text: Any = "60"
    guess(_app, cache=MemoryCache(), body_timeout=minute, drain_timeout=minute)
    assert open_cache("redis://localhost", timeout=minute).timeout == 60  # type: ignore[attr-defined]  # a cache of Redis has it
    assert RetryBudget(seconds=minute).seconds == 60
    week: Any = timedelta(days=7)
    inbox = Inbox("billing", retention=week, redelivery_horizon=minute)
    assert maintenance_of(inbox).retention.seconds == 604800
    for make in (
        lambda: guess(_app, cache=MemoryCache(), body_timeout=text),
        lambda: open_cache("redis://localhost", timeout=text),
        lambda: RetryBudget(seconds=text),
        lambda: Inbox("billing", retention=text),
    ):
        with pytest.raises(TypeError, match=r"is a str: give seconds"):
            make()


def test_a_number_as_the_environment_gives_it_is_named() -> None:
    guess: Any = IdempotencyMiddleware
    with pytest.raises(TypeError, match="max_in_flight_per_caller is a str: give a whole number"):
        guess(_app, cache=MemoryCache(), max_in_flight_per_caller="5")


def test_a_text_in_place_of_a_list_says_what_to_write() -> None:
    guess: Any = IdempotencySettings
    with pytest.raises(ValidationError, match=r'write a list: \["header:Authorization"\]'):
        guess(scope="Authorization")
    with pytest.raises(ValidationError, match=r'write a list: \["jwt:sub"\]'):
        guess(scope="jwt:sub")
    with pytest.raises(ValidationError, match=r'write a list: \["X-Key"\]'):
        guess(aliases="X-Key")
    route: Any = Route
    with pytest.raises(ValidationError, match=r'write a list: \["POST"\]'):
        route("/x", methods="POST")
    with pytest.raises(ValidationError, match=r'write a list: \["shop"\]'):
        JwtSettings(issuer="https://a.example", jwks="https://a.example/keys", audience=cast(Any, "shop"))


def test_when_a_message_was_sent_is_no_text() -> None:
    with pytest.raises(TypeError, match="sent_at is a str: give a datetime"):
        Delivery("k", b"", sent_at=cast(Any, "2026-01-01"))


def test_a_middleware_s_cache_by_place_says_what_to_write() -> None:
    guess: Any = IdempotencyMiddleware
    with pytest.raises(TypeError, match=r"IdempotencyMiddleware\(app, cache=\.\.\.\)"):
        guess(_app, MemoryCache())
    with pytest.raises(TypeError, match=r"protect\(app, cache=\.\.\.\)"):
        cast(Any, protect)(FastAPI(), MemoryCache())


WRONG: dict[str, dict[str, Any]] = {
    "a cache's URL": {"cache": "redis//localhost"},
    "no cache": {},
    "an argument": {"cache": "memory://", "ttl": 5},
    "settings": {"cache": "memory://", "settings": {"ttl": 5}},
    "a namespace": {"cache": "memory://", "namespace": "a:b"},
    "a secret": {"cache": "memory://", "secret": "short"},
}


@pytest.mark.parametrize("wrong", [*WRONG])
def test_protect_raises_where_it_is_written_what_starlette_meets_with_the_first_request(wrong: str) -> None:
    app = FastAPI()
    with pytest.raises((TypeError, ValueError)):
        protect(app, **WRONG[wrong])
    assert app.user_middleware == []
    app.add_middleware(IdempotencyMiddleware, **WRONG[wrong])  # no error: this is why there is protect
    with pytest.raises((TypeError, ValueError)):
        TestClient(app).get("/")


def test_protect_enforces_and_the_description_knows() -> None:
    app, paid = FastAPI(), []

    @app.post("/pay")
    def pay() -> int:
        paid.append(1)
        return len(paid)

    protect(app, cache=MemoryCache(), settings=IdempotencySettings(on_missing_key="reject"))
    document(app)
    client = TestClient(app)
    assert client.post("/pay").status_code == 400
    assert [client.post("/pay", headers={"Idempotency-Key": "k"}).json() for _ in range(2)] == [1, 1]
    assert app.openapi()["paths"]["/pay"]["post"]["parameters"][0]["name"] == "Idempotency-Key"


def test_protect_is_for_apps_that_have_middlewares() -> None:
    with pytest.raises(TypeError, match=r"IdempotencyMiddleware\(app, cache=\.\.\.\)"):
        protect(cast(Any, _app), cache=MemoryCache())
    protect(Starlette(), cache=MemoryCache())
