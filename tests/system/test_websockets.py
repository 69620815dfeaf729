"""WebSockets of a library's server and clients through gateway processes: many, slow readers, a stop, a worker that is killed.

Rules of docs/contract.md: R9.24, R9.25, R9.26, R9.27.
"""

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from testing.gateway import DEADLINE, Gateway
from testing.servers import RedisServer
from testing.waiting import until
from tests.system.conftest import Start

QUICK, LONG = 200, 1000
MEGABYTE = 1024 * 1024
FLOOD = 100
"""Megabytes: more than the kernel's buffers hold."""
HELD = 30 * MEGABYTE
"""What the gateway may grow by meanwhile: a read each way, and what its start has not touched yet."""


class Talk:
    """A server that echoes; under ``/flood`` it sends as fast as it is read."""

    def __init__(self) -> None:
        self.url = ""
        self.ended: list[bool] = []
        self.sent = 0
        self.digest = hashlib.sha256()

    async def __call__(self, connection: ServerConnection) -> None:
        request = connection.request
        assert request is not None
        try:
            if request.path == "/flood":
                await self._flood(connection)
            else:
                async for message in connection:
                    await connection.send(message)
            self.ended.append(True)
        except ConnectionClosed:
            self.ended.append(False)

    async def _flood(self, connection: ServerConnection) -> None:
        source = random.Random(5)
        for _ in range(FLOOD):
            piece = source.randbytes(MEGABYTE)
            await connection.send(piece)
            self.digest.update(piece)
            self.sent += 1


@asynccontextmanager
async def talking() -> AsyncIterator[Talk]:
    talk = Talk()
    async with serve(talk, "127.0.0.1", 0, compression=None, ping_interval=None, max_size=None) as server:
        talk.url = f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
        yield talk


def connecting(gateway: Gateway, path: str = "/talk", **options: Any) -> connect:
    host, port = gateway.address
    return connect(
        f"ws://{host}:{port}{path}",
        compression=None,
        ping_interval=None,
        open_timeout=DEADLINE,
        max_size=None,
        **options,
    )


def tunnels(gateway: Gateway) -> float:
    text = httpx.get(f"{gateway.url}/_oncegate/metrics", timeout=DEADLINE).text
    (line,) = [line for line in text.splitlines() if line.startswith("oncegate_tunnels ")]
    return float(line.split()[1])


async def counted(gateway: Gateway, count: int) -> None:
    await until(lambda: tunnels(gateway) == count, f"{count} tunnels are counted")


def resident(gateway: Gateway) -> int:
    (line,) = [
        line for line in Path(f"/proc/{gateway.pid}/status").read_text().splitlines() if line.startswith("VmRSS")
    ]
    return int(line.split()[1]) * 1024


@pytest.mark.parametrize("count", [QUICK, pytest.param(LONG, marks=pytest.mark.long)])
async def test_many_at_once_through_two_workers(start: Start, redis_server: RedisServer, count: int) -> None:
    async with talking() as talk:
        gateway = start(talk.url, redis_server.url, workers=2).ready()
        opened: list[ClientConnection] = []
        for _ in range(0, count, 50):
            opened += await asyncio.gather(*[connecting(gateway) for _ in range(50)])
        await counted(gateway, count)

        async def converse(number: int, connection: ClientConnection) -> None:
            source = random.Random(number)
            for size in (1, 1000, 70_000):
                sent = source.randbytes(size)
                await connection.send(sent)
                assert await connection.recv() == sent

        await asyncio.gather(*[converse(*each) for each in enumerate(opened)])
        await asyncio.gather(*[connection.close() for connection in opened])
        await counted(gateway, 0)
        await until(lambda: len(talk.ended) == count, "the server sees all of them end")
        assert all(talk.ended)


async def test_a_slow_reader_costs_no_memory_and_loses_nothing(start: Start) -> None:
    async with talking() as talk:
        gateway = start(talk.url).ready()
        async with connecting(gateway) as warm:
            await warm.send(bytes(MEGABYTE))
            await warm.recv()
        before = resident(gateway)
        async with connecting(gateway, "/flood", max_queue=1) as slow:
            stalled, seen = 0, -1
            while stalled < 5:
                stalled, seen = (stalled + 1 if talk.sent == seen else 0), talk.sent
                await asyncio.sleep(0.2)
            assert talk.sent < FLOOD
            assert resident(gateway) - before < HELD
            digest = hashlib.sha256()
            for _ in range(FLOOD):
                digest.update(await slow.recv(decode=False))
            assert digest.digest() == talk.digest.digest()
        assert resident(gateway) - before < HELD


async def test_a_stop_ends_them_in_order(start: Start, redis_server: RedisServer) -> None:
    async with talking() as talk:
        gateway = start(talk.url, redis_server.url, workers=2, shutdown_timeout=DEADLINE).ready()
        opened = await asyncio.gather(*[connecting(gateway) for _ in range(20)])
        for number, connection in enumerate(opened):
            await connection.send(b"%d" % number * 100_000)
        for number, connection in enumerate(opened):
            assert await connection.recv() == b"%d" % number * 100_000
        gateway.terminate()
        for connection in opened:
            with pytest.raises(ConnectionClosed) as closed:
                await connection.recv()
            assert closed.value.rcvd is None  # no close frame: who passes bytes on can't make one
            assert isinstance(closed.value.__cause__, EOFError), "it was an end, no reset"
        await until(lambda: gateway.has_ended, "the gateway ends")
        assert gateway.exit_code() == 0
        await until(lambda: len(talk.ended) == 20, "the server sees all of them end")


async def test_those_of_a_killed_worker_end_and_count_no_more(start: Start, redis_server: RedisServer) -> None:
    async with talking() as talk:
        gateway = start(talk.url, redis_server.url, workers=2).ready()
        opened = await asyncio.gather(*[connecting(gateway) for _ in range(10)])
        await counted(gateway, 10)
        gateway.kill_workers()
        for connection in opened:
            with pytest.raises(ConnectionClosed):
                await connection.recv()
        await until(lambda: len(talk.ended) == 10, "the server sees all of them end")
        await counted(gateway, 0)
        async with connecting(gateway) as again:
            await again.send("a")
            assert await again.recv() == "a"
