"""`oncegate inbox create`, the table for one's own migrations, and that nobody else needs SQLAlchemy.

Rules of docs/contract.md: R10.1.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import MetaData

from oncegate.sql import Inbox
from testing.command_line import invoke
from testing.postgresql import PostgreSQLServer
from testing.servers import free_port
from tests.sql.places import EFFECTS_TABLE, AsyncPlace, Place, SyncPlace

billing = Inbox("billing")


@pytest.mark.parametrize(("driver", "kind"), [("asyncpg", AsyncPlace), ("psycopg", SyncPlace)])
def test_the_command_creates_the_table(postgresql: PostgreSQLServer, driver: str, kind: type[Place]) -> None:
    url = postgresql.url(postgresql.database(), driver)
    assert invoke("inbox", "create", "--database", url).stdout == "created\n"
    assert invoke("inbox", "create", ONCEGATE_INBOX_DATABASE=url).stdout == "it is there already\n"
    place = kind(url)
    place.execute(EFFECTS_TABLE)
    assert [place.deliver(billing, "a").first for _ in range(2)] == [True, False]


def test_the_table_may_be_in_a_schema(postgresql: PostgreSQLServer) -> None:
    name = postgresql.database()
    postgresql.execute("CREATE SCHEMA shop", name)
    place = SyncPlace(postgresql.url(name, "psycopg"))
    place.execute(EFFECTS_TABLE)
    assert invoke("inbox", "create", "--database", place.url, "--schema", "shop").stdout == "created\n"
    inbox = Inbox("billing", schema="shop")
    assert [place.deliver(inbox, "a", keep=1).result for _ in range(2)] == [None, 1]


@pytest.mark.parametrize("scheme", ["sqlite", "sqlite+aiosqlite"])
def test_what_is_printed_makes_the_same_table(tmp_path: Path, scheme: str) -> None:
    printed = invoke("inbox", "create", "--database", "sqlite://", "--print")
    made, by_hand = (SyncPlace(f"sqlite:///{tmp_path}/{name}.db") for name in ("made", "by_hand"))
    for statement in printed.stdout.split(";\n"):
        by_hand.execute(statement)
    assert invoke("inbox", "create", "--database", f"{scheme}:///{tmp_path}/made.db").stdout == "created\n"
    schema = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY sql"
    assert [" ".join(row.sql.split()) for row in made.execute(schema)] == [
        " ".join(row.sql.split()) for row in by_hand.execute(schema)
    ]


def test_keys_are_compared_by_bytes_whatever_the_database_s_collation(postgresql: PostgreSQLServer) -> None:
    name = postgresql.database()
    invoke("inbox", "create", "--database", postgresql.url(name, "psycopg"))
    columns = "SELECT column_name FROM information_schema.columns WHERE table_name = 'oncegate_inbox' AND collation_name = 'C'"
    assert {row[0] for row in postgresql.execute(columns, name)} == {"consumer"}
    columns = "SELECT data_type FROM information_schema.columns WHERE column_name = 'message' AND table_name = 'oncegate_inbox'"
    assert postgresql.execute(columns, name) == [("bytea",)]


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--database", "mysql://u:hidden@h/d"], 2, "PostgreSQL and SQLite"),
        (["--database", "nonsense"], 2, "no URL of SQLAlchemy's"),
        (["--database", "postgresql+pg8000://u:hidden@h/d"], 2, "pip install pg8000"),
        (["--database", "postgresql+psycopg://u:hidden@127.0.0.1:{port}/d"], 1, "127.0.0.1"),
        (["--database", "postgresql+asyncpg://u:hidden@127.0.0.1:{port}/d"], 1, "127.0.0.1"),
        ([], 2, "--database"),
    ],
)
def test_what_can_not_be_done_is_one_line_without_the_password(arguments: list[str], code: int, text: str) -> None:
    done = invoke("inbox", "create", *[argument.format(port=free_port()) for argument in arguments])
    assert done.returncode == code
    assert text in done.stderr
    assert "hidden" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
def test_what_the_server_refuses_is_one_line(postgresql: PostgreSQLServer, driver: str) -> None:
    done = invoke("inbox", "create", "--database", postgresql.url("missing", driver))
    assert done.returncode == 1
    assert 'database "missing" does not exist' in done.stderr
    assert "Traceback" not in done.stderr


def test_inboxes_share_their_table_in_one_metadata() -> None:
    metadata = MetaData()
    assert billing.table(metadata) is Inbox("shipping").table(metadata)
    assert Inbox("billing", schema="shop").table(metadata).fullname == "shop.oncegate_inbox"


def test_nobody_else_needs_sqlalchemy() -> None:
    code = (
        "import sys, oncegate; [getattr(oncegate, name) for name in oncegate.__all__]\n"
        "import oncegate.app.cli.main, oncegate.app.work, oncegate.app.serve, oncegate.faststream, oncegate.client\n"
        "print([name for name in sys.modules if name.startswith(('sqlalchemy', 'oncegate.sql'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")
