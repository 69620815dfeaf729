"""A database server that takes a connection and says nothing, or never comes to an end, is given up by every command."""

import pytest

from oncegate.sql.database import access
from testing.command_line import invoke
from testing.dripping import dripping


@pytest.mark.timeout(60)
@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
@pytest.mark.parametrize("drop", [b"", b"N"], ids=["silent", "dripping"])
def test_a_server_that_does_not_let_in_is_given_up(driver: str, drop: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "CONNECT_SECONDS", 2)  # psycopg's least
    with dripping(b"", drop, pause=0.3) as url:
        database = url.replace("http://", f"postgresql+{driver}://somebody:secret@") + "/shop"
        done = invoke("inbox", "stats", "--database", database)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert "/shop: " in done.stderr
    assert "secret" not in done.stderr
