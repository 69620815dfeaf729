"""Mistakes that an app's own routes show: a rule that matches none of them, a decorator that protects nothing.

It knows Starlette's and FastAPI's routes by what they have; of an app that has others, nothing is found.
"""

import difflib
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from oncegate.middleware.http.apps.completion import late_dependencies
from oncegate.middleware.rules.decorated import is_decorated
from oncegate.middleware.rules.policies import Policies
from oncegate.middleware.rules.settings import IdempotencySettings, Route


class Endpoint(NamedTuple):
    """One path of an app. ``methods`` are empty, and ``route`` is ``None``, where another app is mounted that can't be read."""

    path: str
    methods: frozenset[str]
    route: Any


def endpoints(app: Any, prefix: str = "") -> Iterator[Endpoint]:
    """The paths of a Starlette or FastAPI ``app``, those of mounted ones too; none of any other app."""
    routes = getattr(app, "routes", None) or ()
    # Since 0.13x a router that is included is one route of FastAPI's; what it comes to, FastAPI says itself.
    contexts = getattr(sys.modules.get("fastapi.routing"), "iter_route_contexts", None)
    for route in [each for one in routes for each in _effective(one, contexts)]:
        path = f"{prefix}{getattr(route, 'path', '')}"
        methods = getattr(route, "methods", None)
        if methods:
            yield Endpoint(path, frozenset(methods), route)
        elif hasattr(route, "app"):
            inner = [*endpoints(route, path)]
            yield from inner or [Endpoint(path, frozenset(), None)]


def _effective(route: Any, contexts: Any) -> Iterable[Any]:
    return contexts([route]) if contexts is not None and hasattr(route, "effective_route_contexts") else (route,)


def unmatched(
    found: Sequence[Endpoint],
    settings: IdempotencySettings,
    routes: Sequence[Route],
    *,
    whose: str = "the app",
    otherwise: str = "is it below a mount, or added later?",
) -> Iterator[str]:
    """A line for each of ``routes`` that matches no path of an app, which guards nothing. ``found`` are its `endpoints`.

    ``whose`` paths they are, and what may be the reason ``otherwise``, where no path is near, is said in it.
    """
    if not found:
        return
    for route in routes:
        if route.methods and not any(_matches(route, settings, each) for each in found):
            paths = sorted({each.path for each in found if each.methods & set(route.methods)})
            near = difflib.get_close_matches(route.path, paths, n=1, cutoff=0.5)
            there = [each for each in found if _same_path(route, settings, each)]
            if there:
                hint = f"there it has {', '.join(sorted(there[0].methods))} alone"
            else:
                hint = f'did you mean "{near[0]}"?' if near else otherwise
            yield (
                f'the route "{route.path}" ({", ".join(route.methods)}) matches no path of {whose} and guards nothing: {hint}'
            )


def advice(found: Sequence[Endpoint], policies: Policies) -> Iterator[str]:
    """A line for each path under enforcement whose code decides after the response, and for each `idempotent` without effect."""
    for each in found:
        if each.route is None:
            continue
        if is_decorated(getattr(each.route, "endpoint", None)):
            yield (
                f"@idempotent protects nothing at {each.path}: the function was registered without it;"
                " put @idempotent below the line that registers it"
            )
        policy = next(filter(None, (policies.match(method, each.path) for method in sorted(each.methods))), None)
        names = [] if policy is None else [*late_dependencies(each.route)]
        if policy is not None and names:
            if policy.settings.complete == "response":
                now = "a commit that fails there leaves a recorded success"
            else:
                now = "so the outcome is recorded, and the last byte sent, once the app has returned, background tasks included"
            yield (
                f"{each.path}: {', '.join(names)} ends after the response ({now});"
                ' Depends(..., scope="function") ends it before'
            )


def _matches(route: Route, settings: IdempotencySettings, each: Endpoint) -> bool:
    if each.route is None:  # whatever is mounted there
        return route.path.startswith(each.path) or "*" in route.path
    alone = Policies(settings, (route,))
    if any(_is_of(alone, route, method, each.path) for method in each.methods):
        return True
    return bool(set(route.methods) & each.methods) and _names_a_value(route, each)


def _same_path(route: Route, settings: IdempotencySettings, each: Endpoint) -> bool:
    alone = Policies(settings, (route,))
    return any(_is_of(alone, route, method, each.path) for method in route.methods) or _names_a_value(route, each)


def _names_a_value(route: Route, each: Endpoint) -> bool:
    """Whether the rule's path is one value of a path with a parameter."""
    regex = getattr(each.route, "path_regex", None)
    return bool(regex and regex.match(route.path))


def _is_of(policies: Policies, route: Route, method: str, path: str) -> bool:
    policy = policies.match(method, path)
    return policy is not None and policy.route == route.path
