"""The upstream of the system tests: it counts what arrives for each key, and answers as it was told to.

It runs in a thread of its own, so that it serves every test of a run, and goes on while a test blocks. How it answers is
scripted per key, or, for keys that clients make themselves, per path: the n-th arrival gets the n-th `Reply`, the last one
again and again; without a script, a receipt that no other arrival gets, so that a replay can be told from a second execution.
"""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, Self
from uuid import uuid4

from testing.own_loop import OwnLoopUpstream
from testing.upstreams import Peer, Request


class Gate:
    """Closed until `open`; what waits for it runs in the ledger's loop. As a context manager it is open afterwards."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._event = asyncio.Event()

    def open(self) -> None:
        self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self) -> None:
        await self._event.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.open()


@dataclass(frozen=True)
class Reply:
    """An answer: after ``gate`` and ``delay`` (s), a head, then ``body`` (``None``: a receipt), or ``pieces`` as chunks, with
    waits between.

    ``cut``: the connection is reset ``before-head`` or ``in-body``, or closed in good order right after the answer, as an
    upstream does that keeps no idle connections. ``trickle``: the whole answer goes out byte by byte.
    """

    status: int = 201
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    pieces: Sequence[bytes | Gate] = ()
    gate: Gate | None = None
    cut: Literal["before-head", "in-body", "after-answer"] | None = None
    trickle: bool = False
    delay: float = 0.0


class Ledger(OwnLoopUpstream):
    """For the length of a ``with``. ``arrivals(key)`` are the requests that arrived whole under that key, in their order.

    Where a path has a script, its name stands for the keys that have none.

    ``closed`` counts the connections that it has ended itself, as a `Reply` told it to.
    """

    def __init__(self) -> None:
        super().__init__()
        self.closed = 0
        self._arrivals: defaultdict[str, list[Request]] = defaultdict(list)
        self._script: dict[str, tuple[Reply, ...]] = {}

    def arrivals(self, key: str) -> list[Request]:
        return list(self._arrivals[key])

    def attempts(self, key: str) -> list[str | None]:
        """The ``Idempotency-Attempt`` of each arrival."""
        return [request.value("idempotency-attempt") for request in self.arrivals(key)]

    def total(self) -> int:
        """How many requests have arrived, under whatever key."""
        return sum(len(requests) for requests in list(self._arrivals.values()))

    def answer(self, key: str, *replies: Reply) -> None:
        self._script[key] = replies

    def gate(self) -> Gate:
        return Gate(self.loop)

    async def serve(self, peer: Peer) -> None:
        while True:
            request = await peer.request()
            key, path = next(iter(request.values("idempotency-key")), ""), request.line.split(" ")[1]
            if key not in self._script and path in self._script:
                key = path
            arrivals = self._arrivals[key]
            arrivals.append(request)
            script = self._script.get(key, (Reply(),))
            if not await _answer(peer, request, script[min(len(arrivals), len(script)) - 1]):
                peer.writer.close()
                with suppress(ConnectionError):
                    await peer.writer.wait_closed()
                self.closed += 1
                return


async def _answer(peer: Peer, request: Request, reply: Reply) -> bool:
    """Whether the connection is kept."""
    if reply.gate is not None:
        await reply.gate.wait()
    await asyncio.sleep(reply.delay)
    if reply.cut == "before-head":
        peer.reset()
        return False
    body = b'{"receipt":"%b"}' % uuid4().hex.encode() if reply.body is None else reply.body
    lines = [f"{name}: {value}" for name, value in reply.headers]
    if reply.body is None and not reply.pieces:
        lines.append("content-type: application/json")
    if reply.pieces:
        lines.append("transfer-encoding: chunked")
    elif reply.status not in (204, 304):
        lines.append(f"content-length: {len(body) + (1000 if reply.cut == 'in-body' else 0)}")
    head = f"HTTP/1.1 {reply.status} As told\r\n" + "".join(line + "\r\n" for line in lines) + "\r\n"
    is_head = request.line.startswith("HEAD ")
    data = head.encode("latin-1") + (b"" if reply.pieces or is_head or reply.status == 204 else body)
    await (peer.send_pieces([data[i : i + 1] for i in range(len(data))]) if reply.trickle else peer.send(data))
    for piece in reply.pieces:
        if isinstance(piece, Gate):
            await piece.wait()
        else:
            await peer.send(b"%x\r\n%b\r\n" % (len(piece), piece))
    if reply.cut == "in-body":
        peer.reset()
        return False
    if reply.pieces:
        await peer.send(b"0\r\n\r\n")
    return reply.cut is None
