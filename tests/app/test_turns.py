"""Work for operators lets requests have the loop: in steps of Python, whatever the machine.

Rules of docs/contract.md: R11.38.
"""

import asyncio
import http.client
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from time import monotonic, thread_time
from types import FrameType
from typing import Any

import pytest

from oncegate.app import turns
from oncegate.app.settings.admin_tokens import AdminToken
from oncegate.cache.record import Record, State, StoredResponse, Trace
from oncegate.middleware.rules.keys.key import record_id, record_key
from testing.servers import RedisServer
from testing.upstreams import PATIENCE
from tests.app.operators.console.browsing import CONSOLE, WRITER, Browser
from tests.app.operators.test_dead_letters import Letters
from tests.app.operators.test_streams import command, died
from tests.app.submitted import ROUTES, Submitted, serving

NOW_MS = 1_790_000_000_000
MOST_STEPS = {"turn": 4500, "pause": 7000}
"""Calls between two turns of the loop, and two pauses, between which there may be several turns. What is made at once here takes
twice as many."""
MANY = {"records": 300, "letters": 200, "routes": 40, "audit": 900}
LISTS = (
    "records/?limit=1000",
    "records/?order=newest&limit=1000",
    "dead-letters/?stream=commands&limit=1000",
    "dead-letters/errors?stream=commands",
    "audit/?limit=1000",
    "settings/",
    "processes/",
)
TOKENS = [AdminToken.of("will", WRITER).setting()]


class Steps:
    """Counts what this thread calls, and the most of it between two turns of the loop; or between two pauses of `turns`."""

    def __init__(self) -> None:
        self.most = 0
        self._count = 0

    @asynccontextmanager
    async def by_turn(self) -> AsyncIterator[None]:
        turning = asyncio.create_task(self._turn())
        await asyncio.sleep(0)
        async with self._counted():
            yield
        turning.cancel()

    @asynccontextmanager
    async def by_pause(self, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
        monkeypatch.setattr(turns, "thread_time", self._paused)
        async with self._counted():
            yield
        monkeypatch.undo()

    @asynccontextmanager
    async def _counted(self) -> AsyncIterator[None]:
        self._begin()
        sys.setprofile(self._called)
        try:
            yield
        finally:
            sys.setprofile(None)
            self._begin()

    def _called(self, _frame: FrameType, event: str, _argument: Any) -> None:
        if event in ("call", "c_call"):
            self._count += 1

    def _begin(self) -> None:
        self.most = max(self.most, self._count)
        self._count = 0

    def _paused(self) -> float:
        self._begin()
        return 0.0

    async def _turn(self) -> None:
        while True:
            self._begin()
            await asyncio.sleep(0)


async def fill(there: Submitted, redis: RedisServer) -> str:
    """Much of all that pages show; the id of a dead letter."""
    for number in range(MANY["records"]):
        key = record_key(there.namespace, f"k-{number}", None)
        trace = Trace(gateway="here/1", begun_at_ms=NOW_MS + number, took_ms=3, method="POST", route="/reports")
        state = State.SUCCEEDED if number % 2 else State.UNKNOWN
        response = StoredResponse(200, ((b"content-type", b"text/plain"),), b"x", NOW_MS) if number % 2 else None
        kept = Record(state, os.urandom(16), b"f" * 16, 1, response, trace=trace)
        await there.cache.complete(key, kept, ttl_ms=600_000)
    letters = Letters(there, redis)
    letters.has_a_reader()
    for number in range(MANY["letters"]):
        found = letters.add(command(number), others=died(f"no account {number}", kind=f"Kind{chr(97 + number % 26)}"))
    for number in range(MANY["audit"]):
        line = f'{{"at":{NOW_MS},"operator":"will","what":"{number}","done":"d","reason":"r","process":"p"}}'
        await there.cache.keep_audit_line(there.namespace, line.encode(), most=1000, ttl_ms=600_000)
    return found


def load(port: int, path: str, headers: dict[str, str]) -> int:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status


async def test_nothing_for_operators_holds_the_loop(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    others = [{"path": f"/route-{number}/*"} for number in range(MANY["routes"])]
    async with serving(redis_server, admin_tokens=TOKENS, routes=[*ROUTES, *others]) as there:
        letter = await fill(there, redis_server)
        browser, port = Browser(there.client), there.client.base_url.port or 0
        menu = [link for link in (await browser.log_in()).links() if link.startswith(CONSOLE) and ":" not in link]
        error = next(link for link in (await browser.open("/commands")).links() if "/commands/error?" in link)
        record = record_id(record_key(there.namespace, "k-1", None))
        more = [f"/records/{record}", "/records?state=unknown", "/unknown?route=/reports", "/unknown/all"]
        pages = dict.fromkeys([*menu, error, *[CONSOLE + each for each in more]])
        assert len(pages) > 10
        cookies = "; ".join(f"{name}={value}" for name, value in there.client.cookies.items())
        loads = [
            (path, {"cookie": cookies}) for path in [*pages, f"{CONSOLE}/commands/letter?stream=commands&id={letter}"]
        ]
        loads += [(f"/_oncegate/{path}", {"authorization": f"Bearer {WRITER}"}) for path in LISTS]
        for path, credentials in loads:
            await asyncio.to_thread(load, port, path, credentials)  # the first one of all compiles
            for between, most in MOST_STEPS.items():
                steps = Steps()
                async with steps.by_turn() if between == "turn" else steps.by_pause(monkeypatch):
                    status = await asyncio.to_thread(load, port, path, credentials)
                assert status == 200, path
                assert 0 < steps.most < most, f"{path}: {steps.most} steps without a {between}"


async def work(seconds: float, turns_of_others: list[float]) -> None:
    """Others, who hold the loop for so long in each of its turns."""
    while True:
        until = thread_time() + seconds
        while thread_time() < until:
            pass
        turns_of_others.append(monotonic())
        await asyncio.sleep(0)


async def test_a_loop_that_is_busy_has_more_than_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "REST_SECONDS", 0.2)
    monkeypatch.setattr(turns, "BUSY_SECONDS", 0.005)
    seen: list[float] = []
    beside = asyncio.create_task(work(0.02, seen))
    try:
        begun = monotonic()
        pieces = [each async for each in turns.in_pieces(range(20), 10)]
        taken = monotonic() - begun
    finally:
        beside.cancel()
    assert pieces == list(range(20))
    assert taken >= 0.4  # two rests
    assert len(seen) >= 4


async def test_a_loop_with_nothing_to_do_is_not_left_to_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "REST_SECONDS", 1e6)
    monkeypatch.setattr(turns, "BUSY_SECONDS", 0.5)
    seen: list[float] = []
    beside = asyncio.create_task(work(0.0, seen))
    try:
        async with asyncio.timeout(PATIENCE):
            assert [each async for each in turns.in_pieces(range(30), 10)] == list(range(30))
    finally:
        beside.cancel()
    assert len(seen) >= 3  # others have had each of their turns
