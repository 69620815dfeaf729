"""docs/architecture.md says through which modules a request goes, and which rooms there are."""

import re

import pytest

from testing.servers import RedisServer
from tests.docs.ways import PAGE, ROOT, ways, written

MOST_OF_A_FIRST_REQUEST = 40
"""A number to know: it may fall, and rises where a file is cut that had two ideas."""


@pytest.mark.interpreted
async def test_the_page_names_the_modules_of_each_way(redis_server: RedisServer) -> None:
    found = await ways(redis_server)
    assert written(found) in PAGE.read_text("utf-8"), "python -m tests.docs.ways writes it anew"
    assert len(found["passes"]) < len(found["retry"]) < len(found["first request"]) <= MOST_OF_A_FIRST_REQUEST


def test_the_page_names_every_room() -> None:
    tops = [ROOT / top for top in ("app", "middleware", "cache", "src/oncegate")]
    # Of src/oncegate its own rooms only: links are not followed.
    rooms = {path.parent.relative_to(top).as_posix() for top in tops for path in top.rglob("__init__.py")}
    assert len(rooms) > 30
    assert rooms - set(re.findall(r"`([\w/]+)/`", PAGE.read_text("utf-8"))) - {".", "sql"} == set()


def test_every_path_of_the_page_is_there() -> None:
    paths = re.findall(r"`((?:app|middleware|cache|src|tests|docs|openapi)/[\w/.]*)`", PAGE.read_text("utf-8"))
    assert len(paths) > 15
    assert [path for path in paths if not (ROOT / path).exists()] == []
