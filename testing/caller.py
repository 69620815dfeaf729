"""The client's side: keyed requests over httpx, raw ones over a socket, and conditions that are awaited."""

import asyncio
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self
from uuid import uuid4

import httpx

from testing.gateway import DEADLINE, Gateway
from testing.ledger import Gate, Ledger, Reply
from testing.waiting import until

KEY_MARK = "raw-key-"
CALLER_MARK = "secret-of-"
BODY_MARK = b"body-of-"
PASSWORD_MARK = "password-is-"
"""Every key, credential, body and Redis password of these tests carries one of these: none may ever be logged."""

JSON_TYPE = "application/problem+json"


def fresh_key() -> str:
    return KEY_MARK + uuid4().hex


class Caller:
    """A client, for the length of an ``async with``. Each request is a POST of the same body unless told otherwise."""

    def __init__(self) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._client = httpx.AsyncClient(timeout=DEADLINE, limits=limits, verify=False, trust_env=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._client.aclose()

    async def post(
        self,
        gateway: Gateway,
        key: str,
        path: str = "/payments",
        *,
        body: bytes = BODY_MARK + b"a-payment",
        caller: str = "alice",
        wait: int | None = None,
        headers: dict[str, str] | None = None,
    ) -> httpx.Response:
        fields = {"idempotency-key": key, "authorization": f"Bearer {CALLER_MARK}{caller}", **(headers or {})}
        if wait is not None:
            fields["prefer"] = f"wait={wait}"
        return await self._client.post(gateway.url + path, content=body, headers=fields)

    async def get(
        self, gateway: Gateway, path: str = "/payments", headers: dict[str, str] | None = None
    ) -> httpx.Response:
        return await self._client.get(gateway.url + path, headers=headers)

    async def keyless(self, gateway: Gateway, path: str = "/payments") -> httpx.Response:
        return await self._client.post(gateway.url + path, content=BODY_MARK + b"nobody")

    def send(
        self, gateway: Gateway, key: str, path: str = "/payments", **options: Any
    ) -> "asyncio.Task[httpx.Response]":
        """A post under way."""
        return asyncio.create_task(self.post(gateway, key, path, **options))

    @asynccontextmanager
    async def held(
        self, ledger: Ledger, gateway: Gateway, key: str, path: str = "/payments", *, then: Reply | None = None
    ) -> AsyncIterator[tuple["asyncio.Task[httpx.Response]", Gate]]:
        """A post under way that has arrived, and the gate that it is answered behind. ``then`` answers further attempts."""
        with ledger.gate() as gate:
            ledger.answer(key, Reply(gate=gate), *([then] if then else []))
            task = self.send(gateway, key, path)
            await until(lambda: ledger.arrivals(key), "the request arrives")
            yield task, gate

    async def meets_replay(
        self, gateway: Gateway, key: str, path: str = "/payments", *, of: httpx.Response, **options: Any
    ) -> None:
        """Asserts that what is `settled` is a replay of an earlier answer."""
        answer = await self.settled(gateway, key, path, **options)
        assert is_replay(answer)
        assert answer.content == of.content

    async def settled(self, gateway: Gateway, key: str, path: str = "/payments", **options: Any) -> httpx.Response:
        """The first answer that is neither ``in-flight`` nor ``cache-unavailable``, however often one has to ask."""
        until_then = time.monotonic() + DEADLINE
        while True:
            answer = await self.post(gateway, key, path, **options)
            if slug(answer) not in ("in-flight", "cache-unavailable"):
                return answer
            assert time.monotonic() < until_then, f"still {slug(answer)}"
            await asyncio.sleep(0.05)


def slug(answer: httpx.Response) -> str | None:
    """The problem's slug; ``None`` for an answer that is no problem of the gateway's."""
    if answer.headers.get("content-type") != JSON_TYPE:
        return None
    code: str = answer.json()["code"]
    return code


def is_replay(answer: httpx.Response) -> bool:
    return bool(answer.headers.get("idempotent-replayed") == "true")


async def until_answer(
    request: Callable[[], Awaitable[httpx.Response]], wanted: str | int | Callable[[httpx.Response], bool]
) -> httpx.Response:
    """The first answer with the slug or status ``wanted``, or for which ``wanted`` holds."""
    deadline = time.monotonic() + DEADLINE
    while True:
        answer = await request()
        if wanted(answer) if callable(wanted) else wanted in (slug(answer), answer.status_code):
            return answer
        assert time.monotonic() < deadline, f"{answer.status_code} {answer.text[:300]} instead of {wanted}"
        await asyncio.sleep(0.05)


@dataclass(frozen=True)
class RawAnswer:
    """A response as its bytes came; ``fields`` without change or order lost, names in lower case."""

    status: int
    fields: list[tuple[str, str]]
    body: bytes

    def values(self, name: str) -> list[str]:
        return [value for field, value in self.fields if field == name]


class RawClient:
    """A socket to a gateway, for the length of a ``with``: for what no well-behaved client does."""

    def __init__(self, gateway: Gateway, timeout: float = DEADLINE) -> None:
        self._socket = socket.create_connection(gateway.address, timeout)
        self._received = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def finish(self) -> None:
        """Says that nothing more will be sent."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def leave(self, *, reset: bool = False) -> None:
        """Closes the connection, with RST where asked."""
        if reset:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def receive_until(self, mark: bytes) -> bytes:
        """What came up to and including ``mark``; what came behind it is kept for the next call."""
        while mark not in self._received:
            data = self._socket.recv(65536)
            assert data, f"the connection ended before {mark!r}: {self._received!r}"
            self._received += data
        found, _, self._received = self._received.partition(mark)
        return found + mark

    def receive_all(self) -> bytes:
        """Everything until the gateway closes the connection."""
        with suppress(ConnectionResetError):
            while data := self._socket.recv(65536):
                self._received += data
        return self._received

    def answer(self) -> RawAnswer:
        """The response to one request; its framing is undone, nothing else."""
        head = self.receive_until(b"\r\n\r\n").decode("latin-1")
        line, *lines = head[:-4].split("\r\n")
        fields = [(name.lower(), value.strip()) for name, _, value in (text.partition(":") for text in lines)]
        status = int(line.split()[1])
        found = dict(fields)
        if found.get("transfer-encoding") == "chunked":
            return RawAnswer(status, fields, self._chunks())
        size = 0 if status == 204 else int(found["content-length"])
        return RawAnswer(status, fields, self._exactly(size))

    def _chunks(self) -> bytes:
        body = b""
        while size := int(self.receive_until(b"\r\n"), 16):
            body += self._exactly(size + 2)[:-2]
        self.receive_until(b"\r\n")
        return body

    def _exactly(self, size: int) -> bytes:
        while len(self._received) < size:
            data = self._socket.recv(65536)
            assert data, "the connection ended in the middle of a body"
            self._received += data
        found, self._received = self._received[:size], self._received[size:]
        return found


def raw_post(key: str, body: bytes = BODY_MARK + b"a-payment", path: str = "/payments", *fields: str) -> bytes:
    """A whole keyed request as bytes."""
    lines = [
        f"POST {path} HTTP/1.1",
        "host: localhost",
        f"idempotency-key: {key}",
        f"authorization: Bearer {CALLER_MARK}alice",
        f"content-length: {len(body)}",
        *fields,
    ]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body
