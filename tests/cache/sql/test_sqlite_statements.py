"""The SQL of a file of records, as Pythons that are not here take it."""

import ast
import re
from pathlib import Path

import oncegate.cache.sql.sqlite as room

STATEMENT = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE)\b|.*\bWHERE\b", re.S)
NAMED = re.compile(r"\?\d|[:@$]\w")


def test_no_placeholder_has_a_number_or_a_name() -> None:
    """Values are given by their places: Python 3.12 warns of that where a placeholder is a numbered or a named one."""
    sources = [path.read_text("utf-8") for path in sorted(Path(room.__path__[0]).glob("*.py"))]
    texts = [node.value for source in sources for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
    statements = [text for text in texts if isinstance(text, str) and STATEMENT.match(text)]
    assert len(statements) > 10
    assert [text for text in statements if NAMED.search(text)] == []
