"""``oncegate records create``, and ``oncegate check`` and ``keys`` on records in SQLite and PostgreSQL.

Rules of docs/contract.md: R12.66.
"""

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncegate.cache.open import open_cache
from oncegate.cache.record import ClaimRequest, Record, State, StoredResponse
from oncegate.cache.sql.postgresql.statements import TABLES
from oncegate.middleware.rules.keys.key import record_key
from testing.command_line import invoke
from testing.postgresql import PostgreSQLServer

PATIENT = {"ONCEGATE_CACHE_TIMEOUT": "10"}


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSQLServer]:
    with PostgreSQLServer() as running:
        yield running


@pytest.fixture
def url(server: PostgreSQLServer) -> str:
    return f"postgresql://postgres@127.0.0.1:{server.port}/{server.database()}"


def test_the_table_is_made_once_and_made_again_does_no_harm(url: str) -> None:
    check = ["check", "--upstream", "http://127.0.0.1:1", "--cache", url]
    assert "oncegate records create" in invoke(*check, **PATIENT).stdout
    for _ in range(2):
        done = invoke("records", "create", "--cache", url)
        assert (done.returncode, done.stdout) == (0, "oncegate_records is there\n")
    (line,) = [line for line in invoke(*check, **PATIENT).stdout.splitlines() if "  cache" in line]
    assert line.startswith("!!"), "it is there, and its fsync is off"
    assert "fsync = off" in line


def test_the_statements_can_be_printed(server: PostgreSQLServer, url: str) -> None:
    done = invoke("records", "create", "--print")
    assert (done.returncode, done.stdout) == (0, TABLES)
    server.execute(done.stdout, url.rpartition("/")[2])
    assert invoke("records", "create", "--cache", url).returncode == 0


@pytest.mark.parametrize("cache", ["memory://", "sqlite:///records.db", "redis://127.0.0.1"])
def test_only_postgresql_needs_a_table(cache: str) -> None:
    done = invoke("records", "create", "--cache", cache)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "postgresql://OWNER@HOST/DATABASE" in done.stderr


@pytest.mark.parametrize("where", ["hunter2@127.0.0.1:1/shop", "postgres:hunter2@127.0.0.1:{port}/nowhere"])
def test_a_database_that_is_not_there_is_one_line_without_its_password(server: PostgreSQLServer, where: str) -> None:
    url = f"postgresql://u:{where}" if where.startswith("hunter2") else f"postgresql://{where.format(port=server.port)}"
    done = invoke("records", "create", "--cache", url, **PATIENT)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "hunter2" not in done.stdout + done.stderr


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_operators_see_and_change_records_in_a_database(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    cache = f"sqlite:///{tmp_path}/records.db" if kind == "sqlite" else str(request.getfixturevalue("url"))
    if kind == "postgresql":
        assert (await asyncio.to_thread(invoke, "records", "create", "--cache", cache)).returncode == 0
    opened = open_cache(cache, timeout=30)
    for name, state in (("done", State.SUCCEEDED), ("lost", State.UNKNOWN), ("gone", State.UNKNOWN)):
        key, token = record_key("shop", name, None), os.urandom(16)
        await opened.claim(key, ClaimRequest(token, bytes(16), 600_000, 600_000))
        response = StoredResponse(201, (), b"{}", 1) if state is State.SUCCEEDED else None
        await opened.complete(key, Record(state, token, bytes(16), 1, response), ttl_ms=600_000)
    await opened.close()

    async def keys(*arguments: str) -> str:
        where = ["--cache", cache, "--namespace", "shop"]
        done = await asyncio.to_thread(invoke, "keys", *arguments, *where, **PATIENT)
        assert done.returncode == 0, done.stderr
        return done.stdout

    listed = json.loads(await keys("list", "--json"))["records"]
    assert sorted(each["state"] for each in listed) == ["succeeded", "unknown", "unknown"]
    assert json.loads(await keys("show", "lost", "--json"))["records"][0]["state"] == "unknown"
    await keys("resolve", "lost", "--status", "204")
    await keys("release", "gone")
    listed = json.loads(await keys("list", "--json"))["records"]
    assert sorted(each["state"] for each in listed) == ["succeeded", "succeeded"]
    await keys("purge", "--older", "30d")
    assert len(json.loads(await keys("list", "--json"))["records"]) == 1  # the one that was resolved just now
