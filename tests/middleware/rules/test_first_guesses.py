"""What everybody writes first works, or is refused where it is written, in a line that says what to write."""

from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from oncegate import IdempotencyMiddleware, IdempotencySettings, MemoryCache, Route, idempotent
from oncegate.app.cli.audit import author
from oncegate.app.operators.audit import REASON


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
