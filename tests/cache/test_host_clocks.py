"""Gateways whose hosts disagree about the date by years: leases and times to live run on the cache's own clock.

Rules of docs/contract.md: R5.19.
"""

import asyncio
import json
import os
import subprocess
import sys

import pytest

from oncegate import CommandProcessor, IdempotencySettings
from oncegate.cache.open import open_cache
from oncegate.middleware.rules.keys.key import record_key
from testing.postgresql import PostgreSQLServer
from testing.records import read
from testing.servers import RedisServer

YEARS = 10 * 365 * 86400
TTL = 1000
SLACK_MS = 100_000
"""What may pass between two steps on a machine that is busy."""

ELSEWHERE = """
import asyncio, json, sys, time

url, namespace, shift = sys.argv[1:]
right, right_ns = time.time, time.time_ns
time.time = lambda: right() + int(shift)
time.time_ns = lambda: right_ns() + int(shift) * 10**9

from oncegate import CommandProcessor, IdempotencySettings, InFlightError
from oncegate.cache.open import open_cache

open_cache.__kwdefaults__["timeout"] = 60  # a machine that stands still is no outage

async def main():
    async def execute(command):
        return "elsewhere"

    settings = IdempotencySettings(ttl=1000, on_unknown="retry")
    pay = CommandProcessor(execute, name="pay", cache=url, namespace=namespace, settings=settings)
    told = [await pay.process(1, idempotency_key="done")]
    try:
        told.append(await pay.process(1, idempotency_key="running"))
    except InFlightError:
        told.append("in flight")
    told.append(await pay.process(1, idempotency_key="new"))
    await pay.cache.close()
    print(json.dumps(told))

asyncio.run(main())
"""


@pytest.fixture(params=["redis", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    """Of a cache with a clock of its own."""
    if request.param == "redis":
        redis: RedisServer = request.getfixturevalue("redis_server")
        return redis.url
    server: PostgreSQLServer = request.getfixturevalue("records_server")
    return f"postgresql://postgres@127.0.0.1:{server.port}/{request.getfixturevalue('records_database')}"


@pytest.mark.parametrize("shift", [YEARS, -YEARS], ids=["ahead", "behind"])
async def test_a_host_s_date_decides_nothing(url: str, shift: int) -> None:
    namespace = f"clocks-{os.urandom(6).hex()}"
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def execute(command: int) -> str:
        begun.set()
        await go_on.wait()
        return "here"

    settings = IdempotencySettings(ttl=TTL)
    cache = open_cache(url, timeout=60)
    pay = CommandProcessor(execute, name="pay", cache=cache, namespace=namespace, settings=settings)
    go_on.set()
    assert await pay.process(1, idempotency_key="done") == "here"
    begun.clear()
    go_on.clear()
    running = asyncio.create_task(pay.process(1, idempotency_key="running"))
    await begun.wait()
    command = [sys.executable, "-c", ELSEWHERE, url, namespace, str(shift)]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["here", "in flight", "elsewhere"]
    go_on.set()
    assert await running == "here"
    assert await pay.process(1, idempotency_key="new") == "elsewhere"
    for key in ("done", "running", "new"):
        held = await read(pay.cache, record_key(namespace, key, None))
        assert TTL * 1000 - SLACK_MS < held.remaining_ms <= TTL * 1000
    await cache.close()
