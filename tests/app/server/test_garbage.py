"""What a request leaves behind: nothing that only the garbage collector can take away, which would stop everybody to do so."""

import gc
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest

from oncegate.app.factory import create_gateway
from oncegate.app.settings.gateway import GatewaySettings
from testing.listening import serving
from testing.upstreams import Upstream, answering

# What goes by the fast path is to stay there until the test says otherwise.
pytestmark = pytest.mark.usefixtures("unhurried")

REQUESTS = 20
LASTING: dict[str, Any] = {"cache_timeout": 10, "upstream_keepalive": 600}
"""What is given up leaves garbage, too: nothing is, however slow the machine."""


@contextmanager
def collected() -> Iterator[list[object]]:
    """What of ours only the collector finds, of all that is dropped within."""
    found: list[object] = []
    gc.collect()
    gc.freeze()  # what thousands of tests have left is not looked at again
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        found += [one for one in gc.garbage if type(one).__module__.startswith("oncegate.")]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


@pytest.mark.parametrize("kind", ["pass-through", "first", "replay", "mismatch"])
async def test_a_request_leaves_nothing_for_the_garbage_collector(redis_url: str, kind: str) -> None:
    async with Upstream(answering(b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}")) as upstream:
        settings = GatewaySettings(upstream=upstream.url, cache=redis_url, namespace=uuid4().hex, **LASTING)
        async with serving(create_gateway(settings)) as (reader, writer):

            async def exchange(number: int) -> bytes:
                key = {"pass-through": "", "first": f"Idempotency-Key: {number}\r\n"}.get(
                    kind, "Idempotency-Key: k\r\n"
                )
                body = f"{number:04}" if kind == "mismatch" else "body"
                writer.write(f"POST / HTTP/1.1\r\nHost: a\r\n{key}Content-Length: 4\r\n\r\n{body}".encode())
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
                await reader.readexactly(int(length))
                return head

            await exchange(0)  # what is made once, or by the first
            with collected() as found:
                answers = [await exchange(number) for number in range(1, REQUESTS + 1)]
            status = b"422" if kind == "mismatch" else b"201"
            assert all(answer.split()[1] == status for answer in answers)
            assert [type(one).__qualname__ for one in found] == []


SERVED = """
import gc, os, signal
from oncegate.app.serve import serve
from oncegate.app.settings.gateway import GatewaySettings

def announced(_):
    print(gc.get_threshold()[0], gc.get_freeze_count() > 10_000, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

raise SystemExit(serve(GatewaySettings(upstream="http://127.0.0.1:9", port=0), announce=announced))
"""


def test_the_gateways_own_process_leaves_the_collector_little_to_do() -> None:
    ended = subprocess.run([sys.executable, "-c", SERVED], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout.split()) == (0, ["50000", "True"])
