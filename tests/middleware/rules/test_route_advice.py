"""Routes that guard nothing are found before the first request.

Rules of docs/contract.md: R7.8.
"""

import itertools
import logging
import random
import re
from typing import Any

import pytest

from oncegate.cache.memory.store import MemoryCache
from oncegate.middleware.http.middleware import IdempotencyMiddleware
from oncegate.middleware.rules.checks import route_advice as module
from oncegate.middleware.rules.checks.route_advice import route_advice, shadows
from oncegate.middleware.rules.paths.path_pattern import PathPattern
from oncegate.middleware.rules.settings import Route
from tests.middleware.door import Answering


def route(path: str, *methods: str) -> Route:
    return Route(path=path, methods=methods or ("POST", "PATCH"))


@pytest.mark.parametrize(
    ("earlier", "later", "shadowed"),
    [
        (route("/payments/*"), route("/payments/1"), True),
        (route("/payments/*"), route("/payments/{id}"), True),
        (route("/payments/{id}"), route("/payments/1"), True),
        (route("/payments/{id}"), route("/payments/{other:int}"), True),
        (route("/payments/{rest:path}"), route("/payments/*/refunds"), True),
        (route("*"), route("/a"), True),
        (route("/a*"), route("/a/*"), True),
        (route("*/b"), route("/a/*/b"), True),
        (Route(path="*", methods=()), route("/a"), True),
        (Route(path="*", methods=()), Route(path="/a", methods=()), True),
        (route("/a"), Route(path="/a", methods=()), False),
        (route("/payments/{id}"), route("/payments/*"), False),
        (route("/payments/{id}"), route("/payments/{id}/refunds"), False),
        (route("/payments/1"), route("/payments/{id}"), False),
        (route("/payments"), route("/payments/"), False),
        (route("/a/*"), route("/a*"), False),
        (route("/a", "POST"), route("/a", "POST", "PUT"), False),
        (route("/a", "POST", "PUT"), route("/a", "PUT"), True),
    ],
)
def test_a_route_behind_one_that_takes_all_its_requests(earlier: Route, later: Route, shadowed: bool) -> None:
    assert shadows(earlier, later) is shadowed
    assert bool(route_advice([earlier, later])) is shadowed


def test_what_shadows_matches_whatever_the_other_matches() -> None:
    patterns = ["/a", "/{x}", "/*", "*", "/a/*", "/a/{x}", "/{x}/b", "/*b", "/*/b", "/a*b", "/{x}/{y}", "/{x:path}/b"]
    paths = ["/" + "".join(path) for size in range(5) for path in itertools.product("ab/", repeat=size)]
    found = 0
    for one, other in itertools.product(patterns, repeat=2):
        if shadows(route(one), route(other)):
            found += 1
            assert all(PathPattern(one).matches(path) for path in paths if PathPattern(other).matches(path)), (
                one,
                other,
            )
    assert found > 30


def test_each_line_says_which_and_what_to_do() -> None:
    routes = [route("/a"), route("/payments/*"), route("/payments/{id}"), route("/payments/{id}")]
    assert route_advice(routes) == [
        f"routes.{number}: '/payments/{{id}}' is never reached, since routes.1 ('/payments/*') takes all its requests; "
        "put it before that one"
        for number in (2, 3)
    ]


@pytest.mark.parametrize("path", ["/a//b", "/a/../b", "/./a", "/a%20b", "/a?x=1", "/a#b", "//a", "/a/."])
def test_a_path_that_no_request_has_is_told(path: str) -> None:
    (line,) = route_advice([route(path)])
    assert line.startswith(f"routes.0.path: {path!r} matches nothing")


@pytest.mark.parametrize("path", ["/", "/a", "/a/", "/a b", "*", "/a/*", "/a*/b", "/.well-known", "/100%", "/{id}/"])
def test_any_other_is_not(path: str) -> None:
    assert route_advice([route(path)]) == []


def test_the_middleware_logs_it_once_when_it_is_built(caplog: pytest.LogCaptureFixture) -> None:
    IdempotencyMiddleware(Answering(), cache=MemoryCache(), routes=[route("*"), route("/a")])
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "routes.1" in caplog.text


def never_reached(routes: list[Route]) -> list[tuple[int, int]]:
    """By comparing each with each: which routes are never reached, and the first one that takes all of theirs."""
    found = ((at, next((n for n in range(at) if shadows(routes[n], one)), None)) for at, one in enumerate(routes))
    return [(at, first) for at, first in found if first is not None]


@pytest.mark.parametrize("seed", range(20))
def test_not_all_are_compared_and_the_same_is_said(seed: int) -> None:
    rng = random.Random(seed)
    pieces = ["a", "b", "{x}", "*", "a*", "*b", "{y:path}", ""]
    paths = {"*", "/", "*/b", *("/" + "/".join(rng.choices(pieces, k=rng.randint(1, 4))) for _ in range(150))}
    ways = [("POST",), ("POST", "PUT"), ("PUT",), ()]
    routes = [Route(path=path, methods=rng.choice(ways)) for path in sorted(paths, key=lambda _: rng.random())]
    lines = [re.match(r"routes\.(\d+): .* since routes\.(\d+) ", line) for line in route_advice(routes)]
    found = never_reached(routes)
    assert [(int(each[1]), int(each[2])) for each in lines if each] == found
    assert found


@pytest.mark.parametrize(
    "pattern",
    [
        "/service-{}/things/*/state",
        "/things/*/state-{}",
        "/{{tenant}}/things-{}/{{id}}",
        "/{{tenant}}/things/{{id}}/state-{}",
        "/things-{}",
        "/things-{}/*",
        "/{{tenant:path}}/things-{}",
    ],
)
def test_what_it_takes_grows_with_the_routes_and_not_with_their_pairs(
    pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = 0
    takes_all_of = module.takes_all_of

    def counted(*pair: Any) -> bool:
        nonlocal compared
        compared += 1
        return takes_all_of(*pair)

    monkeypatch.setattr(module, "takes_all_of", counted)
    routes = [route(pattern.format(f"{number:03}")) for number in range(900)]
    others = [route("/{tenant}/others/*"), route("/others/{id}"), route("/others")]
    assert route_advice([*others, *routes]) == []
    assert compared <= 4 * len(routes)
    (line,) = route_advice([*routes, routes[450]])
    assert line.startswith("routes.900: ")
    assert "routes.450 " in line
