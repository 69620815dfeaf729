"""A gateway that is replaced in place, under load: no connection is refused, no request is lost, and each attempt ends where it began.

Rules of docs/contract.md: R10.20.
"""

import asyncio
import os
import signal
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from testing.caller import CALLER_MARK, Caller, RawClient, fresh_key, is_replay, raw_post, until_answer
from testing.gateway import Gateway
from testing.ledger import Ledger, Reply
from testing.servers import RedisServer, free_port
from testing.waiting import until
from tests.system.conftest import Start

SLOW = "/slow"
REQUESTS_OF_A_CONNECTION = 7


@dataclass
class Load:
    """Clients of one port, until the context ends: what they have sent, and what went wrong."""

    port: int
    sent: list[tuple[str, str]] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    ends: bool = False

    async def client(self, path: str, *, requests: int, pause: float) -> None:
        """One that keeps a connection for so many requests, and rests in between."""
        while not self.ends:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError as error:
                self.failures.append(f"refused: {error}")
                continue
            try:
                for _ in range(requests):
                    if not await self._request(reader, writer, path) or self.ends:
                        break
                    await asyncio.sleep(pause)
            except (OSError, EOFError) as error:
                self.failures.append(f"lost: {path} {error!r}")
            finally:
                writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> bool:
        """Whether the connection is kept."""
        key = fresh_key()
        self.sent.append((key, path))
        writer.write(raw_post(key, path=path))
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        await reader.readexactly(int(head.partition("content-length: ")[2].partition("\r\n")[0]))
        self.answers[head[9:12]] += 1
        if head[9:12] != "201":
            self.failures.append(head)
        return "connection: close" not in head


@asynccontextmanager
async def load(port: int, *, slow: int = 6) -> AsyncIterator[Load]:
    """Clients that keep connections busy, that keep them idle most of the time, that open one for each request, that wait long."""
    running = Load(port)
    clients = [running.client("/payments", requests=1, pause=0) for _ in range(3)]
    clients += [running.client("/payments", requests=1000, pause=0) for _ in range(3)]
    clients += [running.client("/payments", requests=1000, pause=0.05 * each) for each in range(1, 25)]
    clients += [running.client(SLOW, requests=3, pause=0) for _ in range(slow)]
    tasks = [asyncio.create_task(each) for each in clients]
    try:
        yield running
    finally:
        running.ends = True
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            assert not isinstance(ended, BaseException), ended


async def serves(gateway: Gateway) -> None:
    """Waits until ``gateway`` serves its port."""
    await asyncio.to_thread(gateway.ready)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("times", [4, pytest.param(20, marks=pytest.mark.long)])
async def test_under_load_nothing_is_refused_or_lost_and_no_attempt_is_unknown(
    start: Start, ledger: Ledger, redis_server: RedisServer, caller: Caller, workers: int, times: int
) -> None:
    port, namespace = free_port(), f"replacement-{uuid4().hex}"
    ledger.answer(SLOW, Reply(delay=10 if times > 10 else 1.5))
    settings: dict[str, Any] = {"namespace": namespace, "workers": workers, "port": port, "cache_timeout": 10}
    gateways = [start(ledger.url, redis_server.url, **settings).ready()]
    async with load(port) as running:
        for _ in range(times):
            await until(lambda: len(running.sent) % 1 == 0)
            gateways.append(start(ledger.url, redis_server.url, replace=True, **settings))
            await serves(gateways[-1])
    assert running.failures == []
    assert running.answers["201"] == len(running.sent)
    for replaced in gateways[:-1]:
        assert await asyncio.to_thread(replaced.exit_code) == 0
    for key, path in running.sent:
        answer = await caller.post(gateways[-1], key, path)
        assert is_replay(answer), answer.text
        assert answer.status_code == 201
