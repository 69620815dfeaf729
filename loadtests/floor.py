"""What no gateway in this interpreter goes below: sockets, uvloop, and round trips over kept connections, by fixed bytes.

    python -m loadtests.floor PORT UPSTREAM_PORT REDIS_PORT

It looks at nothing but the request's mode: a GET goes to the upstream, a request with a key does what a first request or a
replay takes. Replies are whole once their last bytes are there. Its figures are the least, not an aim.
"""

import asyncio
import sys
from collections import deque
from collections.abc import Callable
from typing import cast

import uvloop

from loadtests.processes import BODY

ANSWER = b"HTTP/1.1 201 Created\r\ncontent-length: 300\r\n\r\n" + b"f" * 300
REQUEST = b"GET /payments HTTP/1.1\r\nhost: upstream\r\n\r\n"
COMMAND = b"*2\r\n$4\r\nECHO\r\n$300\r\n" + b"f" * 300 + b"\r\n"


class _Peer(asyncio.Protocol):
    """A connection to the upstream or Redis, on which whoever waits is called in turn."""

    def __init__(self, request: bytes, end: bytes) -> None:
        self._request = request
        self._end = end
        self._read = b""
        self._waiting: deque[Callable[[], None]] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def send(self, then: Callable[[], None]) -> None:
        self._waiting.append(then)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        for _ in range(data.count(self._end)):
            self._waiting.popleft()()


class _Server(asyncio.Protocol):
    def __init__(self, upstream: _Peer, redis: _Peer) -> None:
        self._upstream = upstream
        self._redis = redis

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        if b"first-" in data:
            self._redis.send(self._execute)
        elif b"Idempotency-Key" in data:
            self._redis.send(self._answer)
        else:
            self._upstream.send(self._answer)

    def _execute(self) -> None:
        self._upstream.send(self._record)

    def _record(self) -> None:
        self._redis.send(self._answer)

    def _answer(self) -> None:
        self._transport.write(ANSWER)


async def _serve(port: int, upstream_port: int, redis_port: int) -> None:
    loop = asyncio.get_running_loop()
    end = BODY[-20:].encode()
    _, upstream = await loop.create_connection(lambda: _Peer(REQUEST, end), "127.0.0.1", upstream_port)
    _, redis = await loop.create_connection(lambda: _Peer(COMMAND, b"$300\r\n"), "127.0.0.1", redis_port)
    server = await loop.create_server(lambda: _Server(upstream, redis), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(*map(int, sys.argv[1:])))
