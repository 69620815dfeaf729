"""docs/databases.md: its commands and statements, typed as they stand there, on a server and in a folder of the test's own."""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest

from testing.caller import fresh_key
from testing.command_line import invoke, running
from testing.ledger import Ledger
from testing.postgresql import PostgreSQLServer

PAGE = (Path(__file__).parents[2] / "docs/databases.md").read_text("utf-8")
PATIENT = {"ONCEGATE_CACHE_TIMEOUT": "10"}
DATABASE = "shop"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSQLServer]:
    with PostgreSQLServer() as running_server:
        running_server.execute(f"CREATE DATABASE {DATABASE}")
        yield running_server


@pytest.fixture(scope="module")
def ledger() -> Iterator[Ledger]:
    with Ledger() as upstream:
        yield upstream


def words(block: str, **instead: str) -> list[str]:
    """A command's words behind its name, with this machine's places in those of the page."""
    (line,) = block.strip().splitlines()
    for place, ours in instead.items():
        assert PLACES[place] in line, f"{PLACES[place]} is not in {line}"
        line = line.replace(PLACES[place], ours)
    name, *rest = line.split()
    assert name == "oncegate"
    return rest


PLACES = {"upstream": "http://127.0.0.1:9000", "folder": "/var/lib/oncegate", "server": "@127.0.0.1/"}


def blocks() -> Iterator[tuple[str, str]]:
    for kind, block in re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.M | re.S):
        assert kind in ("sh", "sql"), kind
        yield kind, block


def pays_once(ledger: Ledger, arguments: list[str]) -> None:
    """Two gateways one after the other, on what `arguments` name as the cache: the second one replays what the first did."""
    key, answers = fresh_key(), []
    for _ in range(2):
        with running(*arguments, "--port", "0", **PATIENT) as gateway:
            url = f"{gateway.url()}/payments"
            answers.append(httpx.post(url, headers={"Idempotency-Key": key}, content=b"{}", timeout=60))
            gateway.stop()
    assert [answer.headers.get("idempotent-replayed") for answer in answers] == [None, "true"]
    assert answers[0].content == answers[1].content
    assert ledger.attempts(key) == ["1"]


def test_every_block_does_what_the_page_says(server: PostgreSQLServer, ledger: Ledger, tmp_path: Path) -> None:
    seen = []
    for kind, block in blocks():
        if kind == "sql":
            with psycopg.connect(server.url(DATABASE, "x").replace("+x", ""), autocommit=True) as connection:
                for statement in filter(None, map(str.strip, block.split(";"))):
                    connection.execute(statement.encode())
            seen.append("sql")
        elif "sqlite" in block:
            pays_once(ledger, words(block, upstream=ledger.url, folder=str(tmp_path)))
            seen.append("sqlite")
        elif "records create" in block:
            done = invoke(*words(block, server=f"@127.0.0.1:{server.port}/"))
            assert done.returncode == 0, done.stderr
            seen.append("create")
        else:
            pays_once(ledger, words(block, upstream=ledger.url, server=f"@127.0.0.1:{server.port}/"))
            seen.append("postgresql")
    assert seen == ["sqlite", "create", "sql", "postgresql", "sql"]
    (limit,) = server.execute(
        "SELECT setconfig FROM pg_db_role_setting s JOIN pg_roles r ON r.oid = s.setrole WHERE rolname = 'oncegate'"
    )
    assert limit == (["statement_timeout=500ms"],)
