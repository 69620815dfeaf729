"""``oncegate keys purge``: what goes, what stays, and that nothing goes that became somebody else's meanwhile.

Rules of docs/contract.md: R11.9, R11.17, R11.22.
"""

import asyncio
import io
import json
import os
import subprocess
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from rich.console import Console

from oncegate.app.cli.records.keys_view import purging
from oncegate.app.operators.records.purge import STEP, Purged, Which, purge
from oncegate.cache.record import ClaimRequest, Record, State, StoredResponse, Trace
from oncegate.cache.redis.store import RedisCache
from oncegate.cache.transitions import Resolution
from oncegate.middleware.rules.keys.key import record_key, scope_digest
from testing.command_line import OPERATOR, invoke
from testing.servers import RedisServer

PRINT = bytes(16)
ALICE, BOB = ([b"authorization", b"1", name] for name in (b"alice", b"bob"))
DONE = StoredResponse(201, (), b"{}", 1)


class Shelf:
    """Records in a namespace of their own."""

    def __init__(self, redis: RedisServer) -> None:
        self.namespace = f"purge-{os.urandom(4).hex()}"
        self.cache = RedisCache.from_url(redis.url, timeout=30)
        self.where = ["--cache", redis.url, "--namespace", self.namespace]

    async def put(
        self,
        key: str,
        caller: list[bytes],
        route: str = "*",
        state: State = State.SUCCEEDED,
        begun_at_ms: int = 1,
        completed_at_ms: int = 1,
    ) -> str:
        look_up_key, token = record_key(self.namespace, key, caller), os.urandom(16)
        trace = Trace("vm/1", begun_at_ms, None, "", "POST", route)
        terms: dict[str, Any] = {"token": token, "fingerprint": PRINT, "trace": trace}
        assert (await self.cache.claim(look_up_key, ClaimRequest(lease_ms=600_000, retention_ms=600_000, **terms))).won
        if state is not State.IN_FLIGHT:
            response = None if state is State.UNKNOWN else DONE._replace(completed_at_ms=completed_at_ms)
            outcome = Record(state, attempt=1, response=response, **terms)
            assert await self.cache.complete(look_up_key, outcome, ttl_ms=600_000)
        return look_up_key

    async def left(self) -> set[str]:
        found, cursor = set[str](), ""
        while True:
            page = await self.cache.scan(self.namespace, cursor=cursor, limit=1000)
            found |= set(page.keys)
            cursor = page.cursor
            if not cursor:
                return found


@pytest.fixture
async def shelf(redis: RedisServer) -> AsyncIterator[Shelf]:
    made = Shelf(redis)
    yield made
    await made.cache.close()


async def typed(shelf: Shelf, *arguments: str, text: str = "") -> "subprocess.CompletedProcess[str]":
    """In a thread, since the command has an event loop of its own."""
    command = ["keys", "purge", *arguments, *shelf.where]
    return await asyncio.to_thread(invoke, *command, stdin=text, ONCEGATE_CACHE_TIMEOUT="10")


async def test_one_callers_records_go_and_no_others(shelf: Shelf) -> None:
    kept = {await shelf.put("k", BOB), await shelf.put("l", BOB, "/orders/*")}
    gone = {await shelf.put("k", ALICE), await shelf.put("l", ALICE, state=State.FAILED)}
    which = Which(frozenset({scope_digest(ALICE)}), None)
    assert (await purge(shelf.cache, shelf.namespace, which, dry_run=True)).found == 2
    assert await shelf.left() == kept | gone
    assert (await purge(shelf.cache, shelf.namespace, which)).removed == 2
    assert await shelf.left() == kept


async def test_one_routes_records_go_and_those_that_are_not_over_stay(shelf: Shelf) -> None:
    other = {await shelf.put("a", ALICE), await shelf.put("b", ALICE, "/orders/*/items")}
    unfinished = {await shelf.put(state.value, BOB, "/orders/*", state) for state in (State.IN_FLIGHT, State.UNKNOWN)}
    await shelf.put("c", ALICE, "/orders/*")
    await shelf.put("d", BOB, "/orders/*", State.FAILED)
    progress: list[int] = []
    purged = await purge(
        shelf.cache, shelf.namespace, Which(None, "/orders/*"), progress=lambda each: progress.append(each.removed)
    )
    assert (purged.found, purged.removed, purged.unfinished) == (4, 2, 2)
    assert progress[-1] == 2
    assert await shelf.left() == other | unfinished
    assert (await purge(shelf.cache, shelf.namespace, Which(None, "/orders/*", force=True))).removed == 2
    assert await shelf.left() == other


async def test_more_records_than_one_step_takes(shelf: Shelf) -> None:
    for number in range(STEP + 50):
        await shelf.put(f"k{number}", ALICE, "/many")
    assert (await purge(shelf.cache, shelf.namespace, Which(None, "/many"))).removed >= STEP + 50
    assert await shelf.left() == set()


async def test_what_became_another_attempts_stays(shelf: Shelf) -> None:
    key = await shelf.put("k", ALICE, state=State.FAILED)
    peeked = await shelf.cache.peek(key)
    assert peeked
    taken = await shelf.cache.claim(key, ClaimRequest(os.urandom(16), PRINT, 600_000, 1, frozenset({State.FAILED})))
    assert taken.won
    for force in (False, True):
        assert await shelf.cache.purge(key, peeked.record, force=force) is Resolution.OTHER_ATTEMPT
    assert await shelf.cache.purge(key, taken.record) is Resolution.IN_FLIGHT
    assert await shelf.cache.purge(key + "x", taken.record) is Resolution.ABSENT
    assert await shelf.left() == {key}


async def test_what_is_older_than_an_age_goes_and_nothing_of_which_that_is_not_known(shelf: Shelf) -> None:
    kept = {
        await shelf.put("new", ALICE, completed_at_ms=2000),
        await shelf.put("long", ALICE, begun_at_ms=500, completed_at_ms=1000),  # completed just then
        await shelf.put("no time", ALICE, completed_at_ms=0),
        await shelf.put("no trace", ALICE, state=State.UNKNOWN, begun_at_ms=0),
    }
    await shelf.put("old", BOB, "/orders/*", completed_at_ms=999)
    await shelf.put("dead", ALICE, state=State.UNKNOWN, begun_at_ms=999)
    purged = await purge(shelf.cache, shelf.namespace, Which(None, None, force=True, before_ms=1000))
    assert (purged.seen, purged.found, purged.removed) == (6, 2, 2)
    assert await shelf.left() == kept


async def test_an_age_is_typed_and_told_from_now_on(shelf: Shelf) -> None:
    now = round(time.time() * 1000)
    kept = {await shelf.put("now", ALICE, completed_at_ms=now)}
    await shelf.put("long ago", ALICE, completed_at_ms=now - 86_400_000)
    assert (await typed(shelf, "--older", "12h")).stdout.strip() == "1 found, 1 removed"
    assert await shelf.left() == kept


def test_on_a_terminal_it_shows_how_far_it_is_and_elsewhere_nothing() -> None:
    terminal = Console(file=io.StringIO(), force_terminal=True, width=120)
    program = Console(file=io.StringIO())
    for console in (terminal, program):
        with purging(console) as show:
            show(Purged(seen=1500, found=7, removed=5))
    assert isinstance(terminal.file, io.StringIO)
    assert isinstance(program.file, io.StringIO)
    assert "1500 looked at, 7 found, 5 removed" in terminal.file.getvalue()
    assert program.file.getvalue().strip() == ""


@pytest.mark.parametrize("where", [["--cache", "memory://"], ["--gateway", "http://127.0.0.1:1"]])
def test_what_can_not_be_purged_is_said_in_one_line_with_what_to_do(where: list[str]) -> None:
    done = invoke("keys", "purge", "--older", "1d", *where, ONCEGATE_ADMIN_TOKEN="t")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "memory:// can't be purged, and go with their gateway's restart" in done.stderr
    assert "--cache URL or --config FILE" in done.stderr


async def test_as_it_is_typed(shelf: Shelf) -> None:
    key = record_key(shelf.namespace, "k", [b"authorization", b"1", b"Bearer alice"])
    await shelf.cache.claim(key, ClaimRequest(token=bytes(16), fingerprint=PRINT, lease_ms=600_000, retention_ms=1))
    line = "Authorization: Bearer alice\n"
    left = {"seen": 1, "found": 1, "removed": 0, "unfinished": 1, "unreadable": 0, "dry_run": False}
    assert json.loads((await typed(shelf, "--caller", "-", "--json", text=line)).stdout) == left
    done = await typed(shelf, "--caller", "-", "--force", "--reason", "leaked", text=line)
    assert done.stdout.strip() == "1 found, 1 removed"
    assert done.stderr == f"oncegate.audit: 1 records (one caller): purged, by force, by {OPERATOR}: leaked\n"
    for arguments, why in (
        ([], "give --caller -, --route PATTERN or --older AGE"),
        (["--older", "0d"], "--older takes an age above 0: 45s, 90m, 12h, 30d"),
        (["--older", "1w"], "--older takes an age"),
        (["--older", "-1d"], "--older takes an age"),
        (["--caller", "Bearer hunter2"], "a credential is nothing for a command line"),
        (["--caller", "-"], "no header lines"),
    ):
        done = await typed(shelf, *arguments)
        assert (done.returncode, why in done.stderr) == (2, True), done.stderr
