"""For FastAPI apps: `protect` puts the middleware around the app, `document` adds its rules to the app's own OpenAPI description.

app = FastAPI()
protect(app, cache="redis://localhost", settings=IdempotencySettings(on_missing_key="reject"))
document(app)
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec

try:
    from fastapi import FastAPI
    from starlette.applications import Starlette
except ImportError as missing:  # pragma: no cover
    raise ImportError("oncegate.fastapi needs FastAPI: pip install 'oncegate[fastapi]'") from missing

from oncegate.middleware.http.apps.advice import advice, endpoints, unmatched
from oncegate.middleware.http.apps.openapi import describe
from oncegate.middleware.http.middleware import IdempotencyMiddleware
from oncegate.middleware.rules.checks.arguments import given_routes, given_settings, named_only
from oncegate.middleware.rules.policies import Policies
from oncegate.middleware.rules.settings import IdempotencySettings, Route

__all__ = ["document", "protect"]

log = logging.getLogger("oncegate.http")

Options = ParamSpec("Options")


def _typed_as(
    _: Callable[Concatenate[Any, Options], object],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Starlette, Options], None]]:
    """For type checkers: the decorated function takes an app, and then what ``_`` takes."""
    return lambda function: function


@_typed_as(IdempotencyMiddleware)
@named_only(1, "protect takes the app by place, and all else by name: protect(app, cache=...)")
def protect(app: Starlette, **options: Any) -> None:
    """Put `IdempotencyMiddleware` around ``app``, a FastAPI or Starlette app, with the arguments that it takes.

    As ``app.add_middleware(IdempotencyMiddleware, ...)`` does, but what is wrong is raised here: Starlette makes its middlewares
    with the first request, so that an app with a wrong setting starts, and then answers 500 to everything. Raises what
    `IdempotencyMiddleware` raises, and ``TypeError`` for another app.
    """
    if not isinstance(app, Starlette):
        raise TypeError(
            f"app is a {type(app).__qualname__}: give a FastAPI or Starlette app; around any other ASGI app goes"
            " IdempotencyMiddleware(app, cache=...)"
        )
    IdempotencyMiddleware(app, **options)
    app.add_middleware(IdempotencyMiddleware, **options)


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

    Then, too, a route of the app's own middleware that matches no path raises ``ValueError``, since it guards nothing; what
    else the app's routes show of a mistake is logged.
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
            _check(app, settings, routes, found, prefix)
            last = plain, describe(plain, found, prefix=prefix, named=named)
        return last[1]

    app.openapi = openapi  # type: ignore[method-assign]  # as FastAPI's documentation does it


def _check(
    app: FastAPI,
    settings: IdempotencySettings | None,
    routes: Sequence[Route] | None,
    policies: Policies,
    prefix: str,
) -> None:
    found = [*endpoints(app, prefix)]
    for line in advice(found, policies):
        log.warning("%s", line)
    if settings is None and routes is None:
        options = _options(app) or {}
        lines = [*unmatched(found, options.get("settings") or IdempotencySettings(), options.get("routes") or ())]
        if lines:
            raise ValueError("; ".join(lines))


def _options(app: FastAPI) -> dict[str, Any] | None:
    """The arguments of the app's own middleware."""
    for added in app.user_middleware:
        if isinstance(added.cls, type) and issubclass(added.cls, IdempotencyMiddleware):
            return dict(added.kwargs)
    return None


def _rules(app: FastAPI) -> tuple[Policies, bool]:
    """The rules of the app's own middleware, and whether it names callers itself."""
    options = _options(app)
    if options is not None:
        rules = Policies(options.get("settings") or IdempotencySettings(), options.get("routes") or ())
        return rules, options.get("caller") is not None
    raise RuntimeError("document(app) found no IdempotencyMiddleware in the app: add it, or give settings and routes")
