"""32 connections of an attacker: each sends what once froze the gateway, filled it, or got past a route, again and again.

    python -m loadtests.attackers PORT SECONDS

They know some key, and have no credential. Each pauses for `PAUSE` behind an answer: without that, it would be measured how
programs share a core, not what a request of theirs costs. It says as JSON how many requests each kind made.
"""

import asyncio
import contextlib
import itertools
import json
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable

PAUSE = 0.02
HELD = 2.0
"""Seconds that an upload is left unfinished, and that a reader takes nothing."""
ANSWERED_WITHIN = 30.0
_HEAD = "Host: 127.0.0.1\r\nIdempotency-Key: {key}\r\nContent-Type: application/json\r\n"


def _post(path: str, key: str, body: bytes = b"{}", more: str = "") -> bytes:
    head = f"POST {path} HTTP/1.1\r\n{_HEAD.format(key=key)}{more}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _preference(key: str) -> bytes:
    return _post("/payments", f"known-{key[:4]}", more='Prefer: "' + '\\"' * 15_000 + "\r\n")


def _path(key: str) -> bytes:
    return _post("/a" + "b" * 6_000 + "c" * 6_000, key)


_NESTED = b"[" * 60 + b",".join([b"[[[[[[1]]]]]]"] * 74_000) + b"]" * 60


def _nested(key: str) -> bytes:
    return _post("/json", key, _NESTED[: 1 << 20])


def _other_reading(key: str) -> bytes:
    return _post("//h/payments", key).replace(b"Idempotency-Key", b"X-Other-Header")


def _forwarded(key: str) -> bytes:
    return _post("/payments", key, more="".join(f"X-Forwarded-{number}: root\r\n" for number in range(200)))


def _unfinished(key: str) -> bytes:
    return _post("/payments", key, bytes(1 << 20))[: -(1 << 16)]


def _unread(key: str) -> bytes:
    return _post("/bytes/1000000", key)


ANSWERED: dict[Callable[[str], bytes], int] = {
    _preference: 8, _path: 8, _nested: 4, _other_reading: 2, _forwarded: 2,
}  # fmt: skip
"""What is answered, and by how many connections it is sent."""
HELD_OPEN: dict[Callable[[str], bytes], int] = {_unfinished: 6, _unread: 2}
"""What takes no answer."""


async def _answered(port: int, request: Callable[[str], bytes], until: float, made: Counter[str]) -> None:
    numbers = itertools.count()
    seed = secrets.token_hex(8)
    reader, writer = None, None
    while time.monotonic() < until:
        with contextlib.suppress(OSError, EOFError, TimeoutError, ValueError):
            if writer is None or reader is None:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            async with asyncio.timeout(ANSWERED_WITHIN):
                writer.write(request(f"{seed}-{next(numbers)}"))
                await writer.drain()
                if await _answer(reader):
                    writer.close()
                    writer = None
            made[request.__name__[1:]] += 1
            await asyncio.sleep(PAUSE)
            continue
        if writer is not None:
            writer.close()
            writer = None


async def _answer(reader: asyncio.StreamReader) -> bool:
    """Take one whole answer: is it the connection's last?"""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = head.partition(b"\r\ncontent-length:")[2].split(b"\r\n")[0]
    await reader.readexactly(int(length or 0))
    return b"connection: close" in head


async def _held(port: int, request: Callable[[str], bytes], until: float, made: Counter[str]) -> None:
    while time.monotonic() < until:
        with contextlib.suppress(OSError, TimeoutError):
            _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
            writer.write(request(secrets.token_hex(16)))
            made[request.__name__[1:]] += 1
            async with asyncio.timeout(HELD):
                await writer.drain()
            await asyncio.sleep(min(HELD, max(0.0, until - time.monotonic())))
        writer.transport.abort()


async def _attack(port: int, seconds: float) -> Counter[str]:
    made: Counter[str] = Counter()
    until = time.monotonic() + seconds
    async with asyncio.TaskGroup() as group:
        for way, kinds in ((_answered, ANSWERED), (_held, HELD_OPEN)):
            for request, connections in kinds.items():
                for _ in range(connections):
                    group.create_task(way(port, request, until, made))
    return made


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_attack(int(sys.argv[1]), float(sys.argv[2])))))
