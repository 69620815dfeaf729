"""Real upstreams for tests: a TCP (or unix, or TLS) server whose behaviour on each connection is a function.

A behaviour gets a `Peer` and does what it likes with it: read a request, answer in pieces, reset, hang, say nothing. When it
returns, the connection is closed in good order. It all runs in the test's own loop, and `Upstream` keeps what has arrived::

    async with Upstream(answering(b"HTTP/1.1 200 OK\\r\\ncontent-length: 2\\r\\n\\r\\nok")) as upstream:
        ...  # talk to upstream.url
        assert upstream.arrivals == 1
"""

import asyncio
import os
import socket
import ssl
import struct
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

Behaviour = Callable[["Peer"], Awaitable[None]]

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
PATIENCE = 60.0
"""Seconds until what is awaited counts as something that never comes: no measure of speed."""


@dataclass(frozen=True)
class Request:
    """A request as its bytes arrived: the first line, the field lines in their order, and the body, freed of its framing."""

    line: str
    fields: list[tuple[str, str]]
    body: bytes
    raw: bytes

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.fields if key == name]

    def value(self, name: str) -> str | None:
        values = self.values(name)
        assert len(values) < 2, f"{name} came {len(values)} times"
        return values[0] if values else None


def reset(writer: asyncio.StreamWriter) -> None:
    """Ends the connection with RST instead of FIN, as by one who has left with something unread."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@dataclass
class Peer:
    """One connection of a client, on the upstream's side. ``gone`` is set when the client has ended it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    upstream: "Upstream"
    number: int
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    async def request(self) -> Request:
        """Reads one request whole, and records it. Raises `IncompleteReadError` where the client closes before that."""
        raw = await self.reader.readuntil(b"\r\n\r\n")
        line, *fields = raw[:-4].decode("latin-1").split("\r\n")
        pairs = [(name.lower(), value.strip()) for name, _, value in (text.partition(":") for text in fields)]
        self.upstream.heads.append(raw)
        body, framed = await self._body(dict(pairs))
        request = Request(line, pairs, body, raw + framed)
        self.upstream.requests.append(request)
        self.upstream.served[self.number] += 1
        self.upstream._arrived.set()
        return request

    async def _body(self, fields: dict[str, str]) -> tuple[bytes, bytes]:
        if fields.get("transfer-encoding") != "chunked":
            body = await self.reader.readexactly(int(fields.get("content-length", "0")))
            return body, body
        body = framed = b""
        while True:
            size = await self.reader.readuntil(b"\r\n")
            chunk = await self.reader.readexactly(int(size, 16) + 2)
            framed += size + chunk
            body += chunk[:-2]
            if int(size, 16) == 0:
                return body, framed

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def send_pieces(self, pieces: Iterable[bytes]) -> None:
        """Sends each piece in a packet of its own, as far as a loop can tell."""
        for piece in pieces:
            await self.send(piece)
            await asyncio.sleep(0.001)

    def reset(self) -> None:
        """Ends the connection with RST instead of FIN."""
        reset(self.writer)

    def end_silently(self) -> None:
        """Sends FIN from below: neither this upstream's loop nor its TLS knows, so no alert goes with it."""
        with socket.socket(fileno=os.dup(self.writer.get_extra_info("socket").fileno())) as sock:
            sock.shutdown(socket.SHUT_RDWR)

    async def hang(self) -> None:
        """Reads whatever comes and says nothing, until the client has ended the connection."""
        with suppress(ConnectionError):
            while await self.reader.read(65536):
                pass
        self.gone.set()


class Upstream:
    """A server for the length of an ``async with``. ``behave`` is called for each connection, or the n-th of a list.

    ``url`` is where it listens. ``connections`` counts what was accepted, ``requests`` holds those that `Peer.request` has
    read whole, ``heads`` those whose head had come, ``served`` how many came by each connection; ``peers`` are all so far.
    """

    def __init__(
        self,
        behave: Behaviour | Sequence[Behaviour],
        *,
        path: Path | None = None,
        tls: ssl.SSLContext | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self._behave = behave
        self._path = path
        self._tls = tls
        self._host = host
        self._port = port
        self._tasks: set[asyncio.Task[None]] = set()
        self.peers: list[Peer] = []
        self.requests: list[Request] = []
        self.heads: list[bytes] = []
        self.served: Counter[int] = Counter()
        self._arrived = asyncio.Event()

    @property
    def arrivals(self) -> int:
        """How many requests have arrived whole."""
        return len(self.requests)

    @property
    def connections(self) -> int:
        return len(self.peers)

    @property
    def url(self) -> str:
        if self._path is not None:
            return f"unix://{self._path}"
        return f"{'https' if self._tls else 'http'}://{'localhost' if self._tls else self._host}:{self.port}"

    async def received(self, count: int) -> None:
        """Returns when ``count`` requests have arrived whole. Raises `TimeoutError` after `PATIENCE`."""
        async with asyncio.timeout(PATIENCE):
            while self.arrivals < count:
                self._arrived.clear()
                await self._arrived.wait()

    async def gone(self, number: int = 0) -> None:
        """Returns when a client has come by that connection and ended it. Raises `TimeoutError` after `PATIENCE`."""
        async with asyncio.timeout(PATIENCE):
            while self.connections <= number:  # noqa: ASYNC110 - asyncio's server tells nobody
                await asyncio.sleep(0.001)
            await self.peers[number].gone.wait()

    def stop(self) -> None:
        """Accepts no connection any more."""
        self._server.close()

    async def __aenter__(self) -> Self:
        if self._path is not None:
            self._server: asyncio.Server = await asyncio.start_unix_server(self._serve, self._path)
        else:
            self._server = await asyncio.start_server(self._serve, self._host, self._port, ssl=self._tls)
            self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for peer in self.peers:
            with suppress(AttributeError):  # asyncio's own, where the transport has gone for good
                peer.writer.transport.abort()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        peer = Peer(reader, writer, self, len(self.peers))
        self.peers.append(peer)
        behave = self._behave if callable(self._behave) else self._behave[min(peer.number, len(self._behave) - 1)]
        try:
            await behave(peer)
        except (ConnectionError, asyncio.IncompleteReadError):
            peer.gone.set()
        except asyncio.CancelledError:
            pass  # by our own __aexit__; asyncio's streams would log it
        finally:
            with suppress(RuntimeError, ConnectionError):
                writer.close()


def answering(*answers: bytes, after: asyncio.Event | None = None) -> Behaviour:
    """Reads requests and answers each with the next of ``answers``; the last one again and again. Keeps the connection.

    No request is answered before ``after`` is set.
    """

    async def behave(peer: Peer) -> None:
        count = 0
        while True:
            await peer.request()
            if after:
                await after.wait()
            await peer.send(answers[min(count, len(answers) - 1)])
            count += 1

    return behave


def closing_after(answer: bytes) -> Behaviour:
    """Answers one request and closes the connection."""

    async def behave(peer: Peer) -> None:
        await peer.request()
        await peer.send(answer)

    return behave


async def hanging(peer: Peer) -> None:
    """Takes a request and never answers."""
    await peer.request()
    await peer.hang()


async def answering_once(peer: Peer) -> None:
    """Answers the first request of a connection, and takes the next one without an answer."""
    await peer.request()
    await peer.send(OK)
    await hanging(peer)


def in_pieces(pieces: Iterable[bytes]) -> Behaviour:
    """Answers one request in pieces, each in a packet of its own, and closes."""
    kept = list(pieces)

    async def behave(peer: Peer) -> None:
        await peer.request()
        await peer.send_pieces(kept)

    return behave


def resetting_after(answer: bytes = b"") -> Behaviour:
    """Takes one request, sends ``answer``, and resets the connection once that has been read."""

    async def behave(peer: Peer) -> None:
        await peer.request()
        if answer:
            await peer.send(answer)
            await asyncio.sleep(0.02)  # a reset throws away what was not read yet: on some systems on both sides
        peer.reset()

    return behave
