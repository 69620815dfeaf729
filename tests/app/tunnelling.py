"""What tests of tunnels are made of: a handshake and its answer, a client's raw side, a flood, metrics to be awaited."""

import asyncio
from base64 import b64encode
from collections.abc import Awaitable
from hashlib import sha1
from typing import Any, TypeVar

import httpx

from testing.upstreams import PATIENCE

KEY = b"dGhlIHNhbXBsZSBub25jZQ=="
DIGEST = b64encode(sha1(KEY + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
FIELDS = (
    b"Connection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %b\r\n"
    % KEY
)
HANDSHAKE = b"GET /talk?a=1 HTTP/1.1\r\nHost: api.example\r\n" + FIELDS + b"\r\n"
AGREES = b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %b\r\n" % DIGEST
SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\n" + AGREES + b"\r\n"
NOISE = bytes(range(256)) * 400


class Side:
    """A client's connection to the gateway."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def head(self) -> bytes:
        return await within(self.reader.readuntil(b"\r\n\r\n"))

    async def take(self, size: int) -> bytes:
        return await within(self.reader.readexactly(size))

    async def rest(self) -> bytes:
        return await within(self.reader.read())


Awaited = TypeVar("Awaited")


async def within(awaited: Awaitable[Awaited]) -> Awaited:
    """What is ``awaited``, where it ever comes."""
    async with asyncio.timeout(PATIENCE):
        return await awaited


async def metric(client: httpx.AsyncClient, name: str) -> float:
    text = (await client.get("/_oncegate/metrics")).text
    (line,) = [line for line in text.splitlines() if line.startswith(f"oncegate_{name} ")]
    return float(line.split()[1])


async def until(client: httpx.AsyncClient, name: str, wanted: Any) -> None:
    async with asyncio.timeout(PATIENCE):
        while not wanted(await metric(client, name)):  # noqa: ASYNC110 - a page tells nobody
            await asyncio.sleep(0.01)


class Flood:
    """Sends as much as is taken, and counts it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.sent = 0

    async def pour(self, writer: asyncio.StreamWriter) -> None:
        piece = NOISE[:65_536]
        while self.sent < self.size:
            writer.write(piece)
            await writer.drain()
            self.sent += len(piece)
        writer.write_eof()

    async def stuck(self) -> int:
        """How much was taken, once nothing more is."""
        async with asyncio.timeout(PATIENCE):
            while True:
                before = self.sent
                await asyncio.sleep(0.5)  # nothing happens when no more is taken: only time shows it
                if before and self.sent == before:
                    return before
