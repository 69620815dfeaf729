"""What mypyc takes otherwise than Python does must not stand in a module that is compiled (docs/decisions/0012-compiled.md)."""

import ast
from collections.abc import Iterator

import pytest

from scripts.build_backend import ROOT, marked_modules

Function = ast.FunctionDef | ast.AsyncFunctionDef


def of_two_kinds(function: Function) -> Iterator[str]:
    """Names that errors of different kinds have: the second kind would be taken for the first."""
    kinds: dict[str, set[str]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.ExceptHandler) and node.name:
            kinds.setdefault(node.name, set()).add(ast.unparse(node.type) if node.type else "")
    for name, types in kinds.items():
        if len(types) > 1:
            yield f"{function.name}: {name} is {' and '.join(sorted(types))}"


def waits_while_handling(function: Function) -> Iterator[str]:
    """Waits within ``except`` or ``finally``: meanwhile the error would be that of the whole thread."""
    for node in ast.walk(function):
        if isinstance(node, ast.AsyncWith):
            yield f"{function.name}: leaves in line {node.lineno} by waiting, perhaps with an error"
        if isinstance(node, ast.Try):
            while_handling = [*node.finalbody, *(line for handler in node.handlers for line in handler.body)]
            for inner in (inner for line in while_handling for inner in ast.walk(line)):
                if isinstance(inner, ast.Await | ast.AsyncFor):
                    yield f"{function.name}: waits in line {inner.lineno} while it handles an error"


def found(source: str) -> list[str]:
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, Function)]
    return [what for function in functions for rule in (of_two_kinds, waits_while_handling) for what in rule(function)]


@pytest.mark.parametrize("name", marked_modules())
def test_a_compiled_module_has_nothing_that_mypyc_takes_otherwise(name: str) -> None:
    assert found((ROOT / f"{name}.py").read_text()) == []


@pytest.mark.parametrize(
    "body",
    [
        "try: f()\n except OSError as error: g(error)\n except ValueError as error: g(error)",
        "try: f()\n except OSError: await g()",
        "try: f()\n finally:\n  await g()",
        "async with g(): pass",
    ],
)
def test_what_is_looked_for_is_found(body: str) -> None:
    assert len(found(f"async def wrong():\n {body}")) == 1


def test_marked_modules_are_found() -> None:
    assert {"app/server/connection", "cache/codec", "middleware/http/exchange"} <= set(marked_modules())
