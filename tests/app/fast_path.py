"""The gateway's fast path for requests that end at once, seen from outside: raw requests, and which tasks they cost."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import oncegate
from oncegate.app.gateway.gateway import Gateway
from oncegate.app.upstream.forward import Forwarder
from oncegate.middleware.admission.in_flight import InFlight
from oncegate.middleware.http.door import HttpDoor
from testing.inside import middleware_of, without_fast_path
from testing.served import served
from testing.upstreams import PATIENCE, Behaviour, Peer, Request

_OURS = str(Path(oncegate.__file__).parent)
_FOLDERS = tuple(str((Path(_OURS) / name).resolve()) + "/" for name in ("app", "middleware", "cache"))

CREATED = b"HTTP/1.1 201 Created\r\ncontent-length: 2\r\ndate: Thu, 01 Jan 1970 00:00:00 GMT\r\n\r\n{}"


def request(method: str = "POST", path: str = "/", body: bytes = b"body", **fields: str) -> bytes:
    """A whole request; names of ``fields`` with ``_`` for ``-``."""
    lines = [f"{method} {path} HTTP/1.1", "host: a"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
    if method not in ("GET", "HEAD"):
        lines.append(f"content-length: {len(body)}")
    else:
        body = b""
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def keyed(key: str | None = None, body: bytes = b"body", path: str = "/", **fields: str) -> bytes:
    """A POST with an idempotency key, a new one unless it is given."""
    return request("POST", path, body, idempotency_key=key or uuid4().hex, **fields)


class Talk:
    """A client's connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def exchange(self, data: bytes) -> bytes:
        """The whole answer to one request, as its bytes came."""
        self.writer.write(data)
        return await self.answer(is_head=data.startswith(b"HEAD "))

    async def answer(self, *, is_head: bool = False) -> bytes:
        """The next answer. Until the connection's end, where it is cut off or framed by that."""
        async with asyncio.timeout(PATIENCE):
            try:
                head = await self.reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError as error:
                return error.partial
            status = int(head.split(b" ")[1])
            if status == 100:
                return head + await self.answer(is_head=is_head)
            lower = head.lower()
            if is_head or status in (204, 304):
                return head
            if b"\r\ntransfer-encoding: chunked\r\n" in lower:
                return head + await self._chunks()
            length = lower.partition(b"\r\ncontent-length: ")[2].partition(b"\r\n")[0]
            try:
                return head + (await self.reader.readexactly(int(length)) if length else await self.reader.read())
            except asyncio.IncompleteReadError as error:
                return head + error.partial

    async def _chunks(self) -> bytes:
        got = b""
        try:
            while not got.endswith(b"\r\n0\r\n\r\n") and got != b"0\r\n\r\n":
                size = await self.reader.readuntil(b"\r\n")
                got += size
                got += await self.reader.readexactly(int(size, 16) + 2)
        except asyncio.IncompleteReadError as error:
            got += error.partial
        return got

    def read_nothing(self, *, nothing: bool = True) -> None:
        """Leave what comes where it is, or take it again."""
        transport = cast(asyncio.Transport, self.writer.transport)
        if nothing:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def leave(self) -> None:
        self.writer.transport.abort()

    def reset(self) -> None:
        """Leave so that it is seen at once: otherwise it looks as if the sending side alone were shut."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.leave()


async def answered(talk: Talk, data: bytes) -> bytes:
    """The first answer that is neither ``cache-unavailable`` nor ``in-flight``."""
    async with asyncio.timeout(PATIENCE):
        while True:
            answer = await talk.exchange(data)
            if b'"cache-unavailable"' not in answer and b'"in-flight"' not in answer:
                return answer
            await asyncio.sleep(0.02)


@asynccontextmanager
async def talking(port: int | None) -> AsyncIterator[Talk]:
    """A connection to the gateway at ``port``."""
    talk = Talk(*await asyncio.open_connection("127.0.0.1", port))
    try:
        yield talk
    finally:
        talk.leave()


@asynccontextmanager
async def gateway_at(
    upstream: str, cache: str = "memory://", *, fast_path: bool = True, **settings: Any
) -> AsyncIterator[tuple[Talk, Gateway, int]]:
    """A connection to a gateway in this loop, the gateway, and its port. Without its ``fast_path`` every request gets a task.

    Unless told otherwise, it waits for its cache for so long that only one that is away does not answer in time.
    """
    settings = {"namespace": uuid4().hex, "upstream_keepalive": 600, "cache_timeout": 10, **settings}
    async with served(upstream, cache=cache, **settings) as (client, gateway):
        if not fast_path:
            without_fast_path(gateway)
        port = client.base_url.port
        assert port is not None
        async with talking(port) as talk:
            yield talk, gateway, port


def door_of(gateway: Gateway) -> HttpDoor:
    return middleware_of(gateway).door


def forwarder_of(gateway: Gateway) -> Forwarder:
    forwarder = door_of(gateway).app
    assert isinstance(forwarder, Forwarder)
    return forwarder


def in_flight_of(gateway: Gateway) -> InFlight:
    return door_of(gateway).admissions.in_flight


def _ours(coro: Any) -> str | None:
    """The name of a coroutine of ours: ``Class.method``."""
    kind = type(coro)
    if kind.__module__.startswith("oncegate."):  # a compiled one: its type is named method_Class_gen
        method, _, of = kind.__name__.removesuffix("_gen").rpartition("_")
        return f"{of}.{method}"
    code = getattr(coro, "cr_code", None)
    ours = code is not None and str(Path(code.co_filename).resolve()).startswith(_FOLDERS)
    return coro.__qualname__ if ours else None


@contextmanager
def tasks_made() -> Iterator[list[str]]:
    """The names of the coroutines of ours that are made tasks of meanwhile."""
    loop = asyncio.get_running_loop()
    made: list[str] = []

    def make(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        if (name := _ours(coro)) is not None:
            made.append(name)
        return asyncio.Task(coro, loop=loop, **options)

    loop.set_task_factory(make)
    try:
        yield made
    finally:
        loop.set_task_factory(None)


def by_path(answers: dict[str, bytes], default: bytes = CREATED) -> Behaviour:
    """An upstream that answers by path, or by ``x-reply``, and closes the connection behind what does not say where it ends.

    An empty answer closes the connection without one; one that is cut off before its announced length closes it there.
    """

    async def behave(peer: Peer) -> None:
        while True:
            got: Request = await peer.request()
            data = answers.get(got.value("x-reply") or got.line.split(" ")[1], default)
            if got.line.startswith("HEAD "):
                data = data[: data.find(b"\r\n\r\n", data.find(b"\r\n\r\nHTTP/") + 1) + 4] if data else b""
            await peer.send(data)
            if not ends(data) and not (data and got.line.startswith("HEAD ")):
                return

    return behave


def ends(data: bytes) -> bool:
    """Whether an answer says where it ends, so that its connection stays."""
    head, _, body = data.partition(b"\r\n\r\n")
    if head[9:12] in (b"204", b"304"):
        return True
    length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
    return body.endswith(b"0\r\n\r\n") if not length else len(body) == int(length)


class Slow:
    """Answers at once, but what asks for ``/slow`` when it is told to go on."""

    def __init__(self, answer: bytes = CREATED) -> None:
        self.go_on = asyncio.Event()
        self.answer = answer

    async def __call__(self, peer: Peer) -> None:
        while True:
            if "/slow" not in (await peer.request()).line:
                await peer.send(CREATED)
                continue
            await self.go_on.wait()
            await peer.send(self.answer)
