"""Gateways on SQLite and PostgreSQL: killed half way, without writes, with a damaged row, and what lies on the disk.

Rules of docs/contract.md: R12.60, R12.64, R12.67.
"""

import asyncio
import base64
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from testing.caller import (
    BODY_MARK,
    CALLER_MARK,
    KEY_MARK,
    PASSWORD_MARK,
    Caller,
    fresh_key,
    slug,
    until_answer,
)
from testing.gateway import DEADLINE, Gateway
from testing.ledger import Ledger, Reply
from testing.postgresql import RecordsServer, records_server
from testing.waiting import until
from tests.system.conftest import SharedFile, Start

LEASE = 3.0
CALLERS = 16
Records = SharedFile | RecordsServer


@pytest.fixture(params=["sqlite", "postgresql"])
def records(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Records]:
    """A database of the test's own."""
    if request.param == "sqlite":
        yield SharedFile(f"sqlite:///{tmp_path}/records.db")
    else:
        with records_server() as server:
            yield server


def served(start: Start, ledger: Ledger, records: Records) -> Gateway:
    return start(ledger.url, records.url, workers=2, cache_timeout=1, idempotency={"lease": LEASE})


@pytest.mark.parametrize("keys", [120, pytest.param(1000, marks=pytest.mark.long)])
async def test_a_gateway_that_is_killed_half_way_executes_each_key_once(
    start: Start, ledger: Ledger, records: Records, caller: Caller, keys: int
) -> None:
    gateway, again = (served(start, ledger, records) for _ in range(2))
    gateway.ready()
    waiting = [fresh_key() for _ in range(keys)]
    left = waiting[:]
    answered: list[tuple[str, httpx.Response]] = []

    async def call() -> None:
        while left:
            key = left.pop()
            try:
                answer = await caller.post(gateway, key)
            except httpx.HTTPError:
                return  # it is killed
            answered.append((key, answer))

    callers = [asyncio.create_task(call()) for _ in range(CALLERS)]
    await until(lambda: len(answered) >= keys // 2, "half of them are answered")
    gateway.end()
    await asyncio.gather(*callers)
    assert left, "it was killed too late"
    again.ready()
    bodies = {key: answer.content for key, answer in answered if answer.status_code == 201}
    for key in waiting:
        answer = await caller.settled(again, key)
        # What was under way when it was killed is unknown, and not executed again.
        assert answer.status_code == 201 or slug(answer) == "outcome-unknown"
        assert ledger.attempts(key) == ["1"] if answer.status_code == 201 else len(ledger.attempts(key)) <= 1
        if key in bodies:
            assert answer.content == bodies[key]


@contextmanager
def without_writes(records: Records) -> Iterator[None]:
    """Nobody writes to it: the lock of the file is held, as by a process that stands still; the server is read-only."""
    if isinstance(records, SharedFile):
        with closing(sqlite3.connect(records.url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield
            connection.execute("ROLLBACK")
        return
    change = "ALTER DATABASE {} {} default_transaction_read_only {}"
    others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'oncegate'"
    records.server.execute(change.format(records.database, "SET", "= on"))
    records.server.execute(others)
    yield
    records.server.execute(change.format(records.database, "RESET", ""))
    records.server.execute(others)


async def test_without_writes_new_keys_get_503_and_replays_go_on(
    start: Start, ledger: Ledger, records: Records, caller: Caller
) -> None:
    gateway = served(start, ledger, records).ready()
    done, new = fresh_key(), fresh_key()
    first = await caller.post(gateway, done)
    assert first.status_code == 201
    with without_writes(records):
        refused = await caller.post(gateway, new)
        assert (refused.status_code, slug(refused)) == (503, "cache-unavailable")
        await caller.meets_replay(gateway, done, of=first)
        async with httpx.AsyncClient(timeout=DEADLINE) as client:
            await until_answer(lambda: client.get(f"{gateway.url}/_oncegate/readyz"), is_read_only)
    assert ledger.arrivals(new) == []
    assert (await caller.settled(gateway, new)).status_code == 201
    assert ledger.attempts(new) == ledger.attempts(done) == ["1"]


def is_read_only(answer: httpx.Response) -> bool:
    return bool(answer.json()["cache"] == "read-only")


async def test_a_row_that_was_damaged_is_said_to_be_unreadable_and_not_executed_again(
    start: Start, ledger: Ledger, records: Records, caller: Caller
) -> None:
    gateway, key, other = served(start, ledger, records).ready(), fresh_key(), fresh_key()
    assert (await caller.post(gateway, key)).status_code == 201
    # Not what tells by which secret the records are: the gateway would rightly end.
    damage = "UPDATE oncegate_records SET data = substr(data, 1, length(data) - 3) WHERE key NOT LIKE '{%'"
    if isinstance(records, SharedFile):
        with closing(sqlite3.connect(records.url.removeprefix("sqlite:///"), timeout=30)) as connection:
            connection.execute(damage.replace("oncegate_", ""))
            connection.commit()
    else:
        records.server.execute(damage, records.database)
    answer = await caller.post(gateway, key)
    assert (answer.status_code, slug(answer)) == (500, "record-unreadable")
    assert (await caller.post(gateway, other)).status_code == 201
    assert ledger.attempts(key) == ["1"]


ON = {
    "secret": "a secret of 32 bytes or more, for tests",
    "encryption_keys": [f"k1:{base64.b64encode(bytes(range(32))).decode()}"],
}
RESPONSE_MARK = b"what-the-upstream-said-"


def bytes_on_disk(records: Records, folder: Path) -> bytes:
    """All that the database has written, its log and what was not swept included."""
    if isinstance(records, RecordsServer):
        records.server.execute("CHECKPOINT")
        folder = records.server.folder / "data"
        found = [path for part in ("base", "pg_wal") for path in (folder / part).rglob("[0-9]*")]
        return b"".join(path.read_bytes() for path in found if path.is_file())
    written = [path.read_bytes() for path in sorted(folder.glob("records.db*"))]
    assert len(written) == 3, "the log is there, too: its gateway was killed"
    return b"".join(written)


@pytest.mark.parametrize("settings", [ON, {}], ids=["on", "off"])
async def test_no_key_credential_or_body_is_on_the_disk(
    start: Start, ledger: Ledger, records: Records, caller: Caller, tmp_path: Path, settings: dict[str, Any]
) -> None:
    """Without the settings the bodies of responses are there, which shows that they would be found."""
    gateway = start(ledger.url, records.url, idempotency={"scope": ["header:Authorization"]}, **settings).ready()
    keys = [fresh_key() for _ in range(5)]
    for key in keys:
        fields = (("content-type", "text/plain"), ("x-token", PASSWORD_MARK + key))
        ledger.answer(key, Reply(201, fields, RESPONSE_MARK + key.encode()))
        assert (await caller.post(gateway, key)).status_code == 201
    failing = fresh_key()
    ledger.answer(failing, Reply(500, (), RESPONSE_MARK + failing.encode()))
    assert (await caller.post(gateway, failing)).status_code == 500
    gateway.kill()
    written = bytes_on_disk(records, tmp_path)
    found = {mark: written.count(mark) for mark in MARKS}
    if settings:
        assert found == dict.fromkeys(MARKS, 0)
    else:
        assert found[RESPONSE_MARK] >= len(keys)
        assert found[KEY_MARK.encode()] == found[RESPONSE_MARK] + found[PASSWORD_MARK.encode()]  # within them alone
        assert found[CALLER_MARK.encode()] == found[BODY_MARK] == 0


MARKS = [KEY_MARK.encode(), CALLER_MARK.encode(), PASSWORD_MARK.encode(), BODY_MARK, RESPONSE_MARK]
