"""The share of the keys that is under enforcement grows by reloads, while clients race and retry.

Rules of docs/contract.md: R7.20, R7.22, R10.13, R11.33.
"""

import asyncio
import json
import os
import random
import re
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import httpx

from oncegate.app.settings.admin_tokens import AdminToken
from testing.caller import BODY_MARK, CALLER_MARK, KEY_MARK
from testing.command_line import invoke
from testing.gateway import DEADLINE, Gateway
from testing.servers import RedisServer
from testing.waiting import until
from tests.system.conftest import UNHURRIED, Start
from tests.system.population import Service

TOKEN = "w" * 32
KEYS = [f"{KEY_MARK}of-a-share-{number}" for number in range(150)]
"""Always the same, so that it is always the same of them that are among the first five percent."""
BETWEEN = -1


@dataclass
class Request:
    """One that was sent: while the share was ``percent`` from its begin to its end, or `BETWEEN`."""

    number: str
    percent: int
    answer: httpx.Response

    @property
    def is_enforced(self) -> bool:
        """Only what is under enforcement gets its key back."""
        return "idempotency-key" in self.answer.headers

    @property
    def is_replay(self) -> bool:
        return self.is_enforced and self.answer.headers.get("idempotent-replayed") == "true"


@dataclass
class Load:
    """Callers who send each key by two at once, and once more: the first ``known`` keys, again and again, in any order."""

    gateway: Gateway
    known: int
    percent: int = 0
    is_over: bool = False
    sent: defaultdict[str, list[Request]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self._numbers = iter(range(10**9))
        self._keys = self._in_turn()

    def _in_turn(self) -> Iterator[str]:
        while True:
            yield from random.sample(KEYS[: self.known], self.known)

    async def call(self) -> None:
        async with httpx.AsyncClient(base_url=self.gateway.url, timeout=DEADLINE, trust_env=False) as client:
            while not self.is_over:
                key = next(self._keys)
                await asyncio.gather(self._send(client, key), self._send(client, key))
                await self._send(client, key)

    async def _send(self, client: httpx.AsyncClient, key: str) -> None:
        number, percent = str(next(self._numbers)), self.percent
        fields = {"idempotency-key": key, "authorization": f"Bearer {CALLER_MARK}alice", "x-number": number}
        answer = await client.post("/payments", headers=fields, content=BODY_MARK)
        self.sent[key].append(Request(number, percent if percent == self.percent else BETWEEN, answer))

    def during(self, percent: int) -> dict[str, list[Request]]:
        return {
            key: found
            for key, requests in self.sent.items()
            if (found := [each for each in requests if each.percent == percent])
        }

    async def has_covered(self, percent: int) -> None:
        """Waits until each of the known keys was sent often enough by then."""
        await until(
            lambda: sum(len(found) >= 4 for found in self.during(percent).values()) == self.known,
            f"each key is sent at {percent} %",
        )


def configuration(percent: int) -> str:
    token = AdminToken.of("w", TOKEN, writes=True).setting()
    route = f'path = "/payments"\nenforce = {percent}\nshadow = true\nwait = 20\n'
    return f"admin_tokens = ['{token}']\ncache_timeout = {UNHURRIED}\n[[routes]]\n{route}"


async def grows(load: Load, file: Path) -> None:
    """From 0 to 5 by a signal, and to 100 by the command; with keys that are new each time."""
    gateway = load.gateway

    async def to(percent: int, reload: Callable[[], object]) -> None:
        load.percent = BETWEEN
        new = file.with_suffix(".new")
        new.write_text(configuration(percent))
        new.replace(file)
        count = gateway.text().count('"reloaded: ')
        await asyncio.to_thread(reload)
        await until(lambda: gateway.text().count('"reloaded: ') > count, f"reloaded, to {percent} %")
        load.known += len(KEYS) // 3
        load.percent = percent
        await load.has_covered(percent)

    def command() -> None:
        done = invoke("reload", "--gateway", gateway.url, ONCEGATE_ADMIN_TOKEN=TOKEN)
        assert done.returncode == 0, done.stderr

    await load.has_covered(0)
    await to(5, lambda: os.kill(gateway.pid, signal.SIGHUP))
    await to(100, command)


async def test_a_share_grows_by_reloads_under_load(start: Start, redis_server: RedisServer, tmp_path: Path) -> None:
    """Each key is on one side at a time, and executed twice is what the report names."""
    file = tmp_path / "oncegate.toml"
    file.write_text(configuration(0))
    with Service() as service:
        gateway = start(service.url, redis_server.url, workers=2, namespace=uuid4().hex, config=str(file))
        await asyncio.to_thread(gateway.ready)
        await until(lambda: gateway.text().count("listening on") >= 2, "both workers listen")
        load = Load(gateway, known=len(KEYS) // 3)
        calls = [asyncio.create_task(load.call()) for _ in range(6)]
        try:
            await grows(load, file)
        finally:
            load.is_over = True
            raised = await asyncio.gather(*calls, return_exceptions=True)
        gateway.terminate()
        assert await asyncio.to_thread(gateway.exit_code) == 0
    assert [each for each in raised if each is not None] == []
    everything = [each for requests in load.sent.values() for each in requests]
    assert {each.answer.status_code for each in everything} == {201}

    # At 0 none is enforced, at 5 it is always the same ones, of those that were there before and of new ones; at 100 all are.
    assert not any(each.is_enforced for found in load.during(0).values() for each in found)
    on_sides = {key: {each.is_enforced for each in found} for key, found in load.during(5).items()}
    assert {len(sides) for sides in on_sides.values()} == {1}, "a key on two sides"
    enforced = {key for key, sides in on_sides.items() if sides == {True}}
    known_before = enforced & load.during(0).keys()
    assert known_before
    assert enforced - known_before
    assert len(enforced) < len(on_sides) / 5
    assert all(each.is_enforced for found in load.during(100).values() for each in found)
    assert all(each.is_enforced for key in enforced for each in load.sent[key] if each.percent not in (0, BETWEEN))

    # What is enforced is executed once, if it wasn't before; all others get the answer of the first execution, whosever it was.
    for key, requests in load.sent.items():
        executed_under_enforcement = [each for each in requests if each.is_enforced and not each.is_replay]
        assert len(executed_under_enforcement) <= 1
        for each in requests:
            assert service.arrivals[each.number] == (not each.is_replay)
        assert len({each.answer.content for each in requests if each.is_enforced}) == 1
        if {each.percent for each in requests} & {0} or (key not in enforced and 5 in {r.percent for r in requests}):
            assert executed_under_enforcement == []
        if not any(each.percent in (0, BETWEEN) or not each.is_enforced for each in requests):
            assert sum(service.arrivals[each.number] for each in requests) == 1

    # And what was executed twice is what the report names.
    done = invoke("shadow", "report", "--json", str(gateway.log))
    named = sum(row["count"] for row in json.loads(done.stdout)["executed_twice"])
    assert named == service.arrivals.total() - len(load.sent)
    assert named > len(KEYS)
    applied = re.findall(r'"message": "reloaded: ', gateway.text())
    assert len(applied) == 2
