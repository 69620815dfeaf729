"""``python -m loadtests.runs.callers``: one caller breaks off slow requests by the thousand; what another's take meanwhile.

The gateway bounds what one caller may have (``max_in_flight_per_caller``). The other caller's requests are measured alone first,
then beside, in the same process at the same rate: none may be refused.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path
from uuid import uuid4

import httpx

from testing.gateway import Gateway
from testing.servers import RedisServer
from testing.upstreams import Peer, Upstream

PATIENCE = 60.0
AT_MOST = 3.0
"""Times what it was alone."""


async def answer(peer: Peer) -> None:
    """At once, but for what is slow."""
    while True:
        request = await peer.request()
        if request.value("x-slow"):
            await asyncio.sleep(5)
        await peer.send(b"HTTP/1.1 201 Created\r\ncontent-length: 2\r\n\r\n{}")


async def measured(client: httpx.AsyncClient, seconds: float, pause: float) -> tuple[list[float], int]:
    """How long each of a quiet caller's requests took, and how many were refused."""
    took, refused, until = [], 0, time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.monotonic()
        lines = {"Idempotency-Key": uuid4().hex, "Authorization": "Bearer quiet"}
        got = await client.post("/pay", headers=lines, content=b"{}")
        took.append(time.monotonic() - began)
        refused += got.status_code != 201
        await asyncio.sleep(pause)
    return took, refused


async def abort(address: tuple[str, int], every: float, count: int) -> None:
    """One caller sends ``count`` slow requests, and breaks each off."""
    for _ in range(count):
        _, writer = await asyncio.open_connection(*address)
        head = f"POST /pay HTTP/1.1\r\nHost: h\r\nX-Slow: 1\r\nIdempotency-Key: {uuid4().hex}\r\nAuthorization: Bearer loud\r\n"
        writer.write(f"{head}Content-Length: 2\r\n\r\n{{}}".encode())
        await writer.drain()
        await asyncio.sleep(every)
        writer.transport.abort()


async def run(options: argparse.Namespace) -> tuple[list[float], list[float], int]:
    """What the quiet caller's requests took alone and beside (s), and how many were refused."""
    with tempfile.TemporaryDirectory() as folder, RedisServer() as redis:
        async with Upstream(answer) as upstream:
            limit = (
                {"max_in_flight": 200, "max_in_flight_per_caller": options.limit}
                if options.limit
                else {"max_in_flight": 200}
            )
            gateway = Gateway(Path(folder) / "log", upstream.url, redis.url, log_level="info", **limit)
            await asyncio.to_thread(gateway.ready)
            try:
                async with httpx.AsyncClient(base_url=gateway.url, timeout=PATIENCE) as client:
                    await measured(client, 2, 0.01)
                    alone, before = await measured(client, options.seconds, 0.01)
                    every = options.seconds / options.aborted
                    aborting = asyncio.create_task(abort(gateway.address, every, options.aborted))
                    beside, refused = await measured(client, options.seconds, 0.01)
                    await aborting
            finally:
                gateway.kill()
    return alone, beside, before + refused


def main() -> int:
    """Print both, and their ratio; 1 where it is above 3, or a request was refused."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--aborted", type=int, default=1000)
    parser.add_argument(
        "--limit", type=int, default=20, help="max_in_flight_per_caller; 0: none, and the others are refused"
    )
    alone, beside, refused = asyncio.run(run(parser.parse_args()))
    before, after = (statistics.quantiles(took, n=100)[98] for took in (alone, beside))
    print(f"p99 alone: {before * 1000:.1f} ms of {len(alone)} requests")
    print(f"p99 beside: {after * 1000:.1f} ms of {len(beside)} requests, {after / before:.2f} times")
    print(f"refused: {refused}")
    return int(after > AT_MOST * before or refused > 0)


if __name__ == "__main__":
    sys.exit(main())
