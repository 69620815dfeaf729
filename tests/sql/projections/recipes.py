"""The recipes of docs/patterns for a read model's row and a second store, as their pages have them."""

from pathlib import Path
from runpy import run_path
from types import SimpleNamespace

from sqlalchemy import text
from sqlalchemy.orm import Session

from testing import pages
from testing.template import ROOT
from tests.sql.places import Place

PAGES = ("row-columns", "second-store")
"""Each has its tests in test_recipes.py."""
TABLES = ("by_version", "by_position", "by_id")


def recipe(page: str, folder: Path) -> SimpleNamespace:
    """The names of a page's example."""
    file = folder / f"{page.replace('-', '_')}.py"
    file.write_text(source(page))
    return SimpleNamespace(**run_path(str(file)))


def source(page: str) -> str:
    (block,) = [
        block
        for kind, block in pages.BLOCK.findall((ROOT / "docs/patterns" / f"{page}.md").read_text("utf-8"))
        if pages.FILE.match(block)
    ]
    return str(block)


def make_rows(place: Place, columns: SimpleNamespace) -> None:
    """The recipe's tables, empty."""

    def create(session: Session) -> None:
        for table in TABLES:
            session.execute(text(f"DROP TABLE IF EXISTS {table}"))
        kind = columns.JSON["postgresql" if place.is_postgresql else "sqlite"]
        for statement in columns.SCHEMA.format(json=kind).split(";")[:-1]:
            session.execute(text(statement))

    place.run(create)
