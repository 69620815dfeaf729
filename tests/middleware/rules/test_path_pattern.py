"""The paths of routes: runs, and frameworks' path parameters.

Rules of docs/contract.md: R7.5.
"""

import random
import re

import pytest
from pydantic import ValidationError

from oncegate.middleware.rules.paths.path_pattern import PathPattern, parts_of
from oncegate.middleware.rules.settings import Route


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("/items/{id}", "/items/1", True),
        ("/items/{id}", "/items/", False),
        ("/items/{id}", "/items/1/2", False),
        ("/items/{id}", "/items/{id}", True),
        ("/items/{id}/", "/items/1/", True),
        ("/items/{id:int}/refunds", "/items/1/refunds", True),
        ("/items/{id:uuid}/refunds", "/items/1/2/refunds", False),
        ("/{a}/{b}", "/1/2", True),
        ("/{a}/{b}", "/1", False),
        ("/files/{rest:path}", "/files/a/b", True),
        ("/files/{rest:path}/raw", "/files/a/b/raw", True),
        ("/files/{rest:path}", "/files/", True),
        ("/files/{rest:path}", "/files", False),
        ("*/{id}", "/a/b/c", True),
        ("*/{id}", "/a/b/", False),
        ("*/x/{id}/y/*", "/x/1/y/2", True),
        ("*/x/{id}/y/*", "/x/x/1/y/", True),
        ("*/x/{id}/y/*", "/x/1/2/y/", False),
        ("/a/{b}/*/{c}", "/a/1/2", False),
        ("/a/{b}/*/{c}", "/a/1/2/3", True),
        ("/a/{b}/*/{c}", "/a/1//3", True),
        ("/a*a", "/a", False),
    ],
)
def test_a_parameter_is_one_segment_and_a_path_any_run(pattern: str, path: str, matches: bool) -> None:
    assert PathPattern(pattern).matches(path) is matches


@pytest.mark.parametrize(
    "path",
    [
        "/items/{id}.json",
        "/items/{id}*",
        "/items/x{id}",
        "/items/{id",
        "/items/id}",
        "/items/{}",
        "/items/{id:[0-9]+}",
        "/items/{id:colour}",
        "/items/{{id}}",
        "/items/{a}{b}",
        "/items/:id",
        "/items/<id>",
        "/items/<int:id>",
        "*{id}",
    ],
)
def test_what_would_guard_nothing_is_refused_in_one_line(path: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Route(path=path)
    (error,) = refused.value.errors()
    assert error["loc"] == ("path",)
    assert "\n" not in error["msg"]
    assert "{" in error["msg"]


@pytest.mark.parametrize("path", ["/items/x:cancel", "/a:b/c", "/<", "/a>b"])
def test_what_is_no_parameter_is_literal(path: str) -> None:
    assert PathPattern(path).matches(path)


def test_it_says_what_a_regular_expression_would() -> None:
    chance = random.Random(7)
    pieces = ["/", "a", "b", "*", "/{x}", "/{x}/", "/{x:path}", "/a", "/a/b"]
    matching = 0
    for _ in range(3000):
        pattern = "/" + "".join(chance.choices(pieces, k=chance.randint(1, 6)))
        try:
            parts = parts_of(pattern)
        except ValueError:
            continue
        expression = re.compile(".*".join("[^/]+".join(map(re.escape, part)) for part in parts), re.DOTALL)
        compiled = PathPattern(pattern)
        for _ in range(20):
            path = "/" + "".join(chance.choices(["/", "a", "b", "/a", "/b/", "//", "ab"], k=chance.randint(0, 7)))
            expected = expression.fullmatch(path) is not None
            matching += expected
            assert compiled.matches(path) is expected, (pattern, path)
    assert matching > 1000


class Counted(str):
    """Counts what is looked for in it."""

    searches = 0

    def find(self, *arguments: object) -> int:
        self.searches += 1
        return super().find(*arguments)  # type: ignore[arg-type]  # as str's


@pytest.mark.interpreted
def test_the_work_grows_with_the_path_and_no_faster() -> None:
    for pattern, unit in (("*/a/{x}/{y}/b/*/c/{z}/d*", "/a/1/2/"), ("/*a*a*a*a*b", "a"), ("*/{a}/{b}/{c}/q/*", "/x")):
        counts = []
        for times in (100, 1000):
            text = Counted("/" + unit * times)
            PathPattern(pattern).matches(text)
            counts.append(text.searches)
        assert counts[1] <= 11 * counts[0], (pattern, counts)


@pytest.mark.parametrize(
    ("pattern", "path", "run"),
    [
        ("/orders/*", "/orders/7", "7"),
        ("/orders/*", "/orders/", ""),
        ("/orders/*", "/others/7", None),
        ("/orders/*/items/*", "/orders/7/items/8", "7"),
        ("/orders/*/items/*", "/orders/7/items/items/8", "7"),
        ("/*/x/{id}/y/*", "/a/x/1/y/2", "a"),
        ("/{tenant}/orders/*/cancel", "/t/orders/7/8/cancel", "7/8"),
        ("/orders/{rest:path}", "/orders/7/8", "7/8"),
        ("*", "/orders/7", "/orders/7"),
        ("/orders/{id}", "/orders/7", None),
    ],
)
def test_the_first_run_is_what_the_first_asterisk_stands_for(pattern: str, path: str, run: str | None) -> None:
    assert PathPattern(pattern).first_run(path) == run
