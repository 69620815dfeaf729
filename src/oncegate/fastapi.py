"""For FastAPI apps: `document` adds the key's header and the problems to the app's own OpenAPI description.

app = FastAPI()
app.add_middleware(IdempotencyMiddleware, cache=cache, settings=IdempotencySettings(require_key=True))
document(app)
"""

from collections.abc import Sequence
from typing import Any

try:
    from fastapi import FastAPI
except ImportError as missing:  # pragma: no cover
    raise ImportError("oncegate.fastapi needs FastAPI: pip install 'oncegate[fastapi]'") from missing

from oncegate.middleware.http.middleware import IdempotencyMiddleware
from oncegate.middleware.http.openapi import describe
from oncegate.middleware.rules.arguments import given_routes, given_settings
from oncegate.middleware.rules.policy import Policies
from oncegate.middleware.rules.settings import IdempotencySettings, Route

__all__ = ["document"]


def document(
    app: FastAPI,
    *,
    settings: IdempotencySettings | None = None,
    routes: Sequence[Route] | None = None,
    prefix: str = "",
) -> None:
    """Add to the OpenAPI description of ``app`` what its `IdempotencyMiddleware` enforces, by its rules for each route.

    Called anywhere before the first request: the rules are read when the description is generated. Give ``settings`` and
    ``routes`` where the middleware is not the app's own (around it, or of the app that it is mounted in), and ``prefix``
    for the path of a mount. Without either, asking for the description raises ``RuntimeError``.
    """
    given = settings is not None or routes is not None
    rules = Policies(given_settings(settings, IdempotencySettings), given_routes(routes or ())) if given else None
    generate = app.openapi
    last: tuple[Any, dict[str, Any]] | None = None

    def openapi() -> dict[str, Any]:
        nonlocal last
        plain = generate()
        # FastAPI keeps what it has generated: the same object means the same description, until a route is added.
        if last is None or last[0] is not plain:
            found, named = (rules, False) if rules is not None else _rules(app)
            last = plain, describe(plain, found, prefix=prefix, named=named)
        return last[1]

    app.openapi = openapi  # type: ignore[method-assign]  # as FastAPI's documentation does it


def _rules(app: FastAPI) -> tuple[Policies, bool]:
    """The rules of the app's own middleware, and whether it names callers itself."""
    for added in app.user_middleware:
        if isinstance(added.cls, type) and issubclass(added.cls, IdempotencyMiddleware):
            options: dict[str, Any] = dict(added.kwargs)
            rules = Policies(options.get("settings") or IdempotencySettings(), options.get("routes") or ())
            return rules, options.get("caller") is not None
    raise RuntimeError("document(app) found no IdempotencyMiddleware in the app: add it, or give settings and routes")
