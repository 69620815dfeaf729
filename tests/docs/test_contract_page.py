"""docs/contract.md and the tests that hold its rules name each other."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/contract.md").read_text("utf-8")
RULE = r"R\d+\.\d+"
ROWS = re.findall(rf"^\| ({RULE}) \|.*\| ([^|]*) \|$", PAGE, re.M)
"""Each rule's number and the cell that names its tests."""


@cache
def cited(file: str) -> frozenset[str]:
    """The numbers of the rules that the docstring of a test module cites."""
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    return frozenset(re.findall(rf"\b{RULE}\b", ast.get_docstring(tree) or ""))


def test_every_number_is_one_rule_s_and_begins_with_its_section_s() -> None:
    numbers = [number for number, _ in ROWS]
    assert len(numbers) == len(re.findall(r"^\| *R\d", PAGE, re.M)) > 100, "a row is not of this form"
    assert len(numbers) == len(set(numbers))
    for section, text in re.findall(r"^## (\d+)\. (.*?)(?=^## |\Z)", PAGE, re.M | re.S):
        inside = re.findall(rf"^\| ({RULE}) \|", text, re.M)
        assert inside
        assert {number.partition(".")[0] for number in inside} == {f"R{section}"}


@pytest.mark.parametrize(("number", "cell"), ROWS, ids=[number for number, _ in ROWS])
def test_each_rule_is_held_by_tests_that_cite_it(number: str, cell: str) -> None:
    files = cell.split(", ")
    for file in files:
        assert re.fullmatch(r"`tests/([a-z_]+/)*test_[a-z0-9_]+\.py`", file), file
        assert number in cited(file.strip("`")), f"the docstring of {file} does not cite {number}"


def test_what_a_test_cites_is_a_rule_that_names_it() -> None:
    named = {(number, file.strip("`")) for number, cell in ROWS for file in cell.split(", ")}
    files = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("*.py")]
    assert {(number, file) for file in files for number in cited(file)} == named


def test_a_rule_that_a_text_refers_to_is_one() -> None:
    assert set(re.findall(rf"\b{RULE}\b", PAGE)) == {number for number, _ in ROWS}
