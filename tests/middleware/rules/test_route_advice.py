"""Routes that guard nothing are found before the first request.

Rules of docs/contract.md: R7.8.
"""

import itertools
import logging

import pytest

from oncegate.cache.memory.store import MemoryCache
from oncegate.middleware.http.middleware import IdempotencyMiddleware
from oncegate.middleware.rules.path_pattern import PathPattern
from oncegate.middleware.rules.route_advice import route_advice, shadows
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
