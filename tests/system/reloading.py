"""A gateway whose configuration is read anew: two configurations, and requests that show which one they are under."""

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from oncegate.app.settings.admin_tokens import AdminToken
from testing.caller import fresh_key
from testing.gateway import DEADLINE, Gateway
from testing.upstreams import OK, Upstream, answering
from testing.waiting import until

KEY = "Idempotency-Key"
_READS, _WRITES = (AdminToken.of(name, name * 20, writes=name == "w").setting() for name in "rw")
_COMMON = 'cache_timeout = 10\n[idempotency]\naliases = ["Idempotency-Key"]\n'


def configuration(name: str, more: str = "") -> str:
    """Configuration ``a`` or ``b``."""
    own = f"admin_tokens = ['{_READS}', '{_WRITES}']\nvia = {'true' if name == 'a' else 'false'}\n"
    return f"{own}{_COMMON}header = 'Key-{name}'\n{more}"


def seen(answer: httpx.Response) -> str:
    """The configuration that a first response is under; fails where it is under both."""
    names = {name for name in "ab" if f"key-{name}" in answer.headers}
    assert len(names) == 1, answer.headers
    (name,) = names
    assert ("via" in answer.headers) == (name == "a"), answer.headers
    return name


@dataclass
class Reloading:
    """A gateway whose configuration is in ``file``."""

    gateway: Gateway
    file: Path
    upstream: Upstream
    workers: int
    reloads: int = 0

    def write(self, text: str) -> None:
        """As an editor does: the file is there, whole, at each moment."""
        new = self.file.with_suffix(".new")
        new.write_text(text)
        new.replace(self.file)

    async def reload(self, text: str) -> str:
        """What the log says of it, once it is over."""
        self.write(text)
        os.kill(self.gateway.pid, signal.SIGHUP)
        return await self.over()

    async def half_prepared(self, text: str) -> int:
        """Begin a reload to ``text``; the second of two workers, which stands still (SIGSTOP) while the first one is prepared."""
        _, second = self.gateway.workers()
        os.kill(second, signal.SIGSTOP)
        self.write(text)
        os.kill(self.gateway.pid, signal.SIGHUP)
        await until(lambda: "is prepared" in self.gateway.text(), "the first worker is prepared")
        return second

    async def over(self, count: int = 1) -> str:
        self.reloads += count
        lines = await until(lambda: found if len(found := self.lines()) >= self.reloads else None, "reloaded")
        assert len(lines) == self.reloads
        return str(lines[-1])

    def lines(self) -> list[str]:
        """What came of each reload, by the log."""
        return re.findall(r'"message": "(reloaded: [^"]*|not reloaded, [^"]*)"', self.gateway.text())

    async def serving(self, client: httpx.AsyncClient) -> dict[str, float]:
        """How many processes serve by which configuration."""
        page = (await client.get("/_oncegate/metrics")).text
        return {digest: float(count) for digest, count in re.findall(r'config_info\{digest="(\w+)"\} (\S+)', page)}

    async def pays_by(self, client: httpx.AsyncClient, name: str) -> bool:
        return await self.pay(client) == name

    async def pay(self, client: httpx.AsyncClient) -> str:
        """The configuration that a request with a fresh key was answered by, and its retry as by one."""
        headers = {KEY: fresh_key(), "Authorization": "Bearer a"}
        answer = await client.post("/payments", headers=headers, content=b"{}")
        assert answer.status_code == 200, answer.text
        again = await client.post("/payments", headers=headers, content=b"{}")
        assert again.headers["idempotent-replayed"] == "true"
        assert again.content == answer.content
        return seen(answer)


@asynccontextmanager
async def reloading(
    folder: Path, cache: str, workers: int, text: str, behave: Any = None, **environment: str
) -> AsyncIterator[Reloading]:
    file = folder / "oncegate.toml"
    file.write_text(text)
    async with Upstream(behave or answering(OK)) as upstream:
        settings: dict[str, Any] = {"config": str(file), "namespace": uuid4().hex, **environment}
        gateway = Gateway(folder / "log", upstream.url, cache, workers=workers, **settings)
        try:
            gateway.ready()
            until_all_listen = lambda: gateway.text().count("listening on") >= workers  # noqa: E731 - shorter than a function, and its reason is its name
            await until(until_all_listen, "all workers listen")
            yield Reloading(gateway, file, upstream, workers)
        finally:
            gateway.end()


def clients(url: str, count: int = 1) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=url, timeout=DEADLINE, verify=False, limits=httpx.Limits(max_keepalive_connections=count)
    )


async def under_load(one: Reloading, change: Callable[[list[str]], Any], callers: int = 6) -> list[str]:
    """Which configurations the requests of some callers were answered by, one after the other, while ``change`` is at work.

    Each caller has a connection of its own, that stays open. ``change`` gets what was found, as it comes.
    """
    found: list[str] = []
    is_over = False

    async def call() -> None:
        async with clients(one.gateway.url) as client:
            while not is_over:
                found.append(await one.pay(client))

    calls = [asyncio.create_task(call()) for _ in range(callers)]
    try:
        await change(found)
    finally:
        is_over = True
        results = await asyncio.gather(*calls, return_exceptions=True)
    assert [each for each in results if each is not None] == []
    return found
