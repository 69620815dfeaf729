"""The transports under httpx2, httpx's successor: its own where ``httpx`` means that, a clear refusal where it does not."""

import asyncio
import subprocess
import sys

import httpx2
import pytest

from oncegate.client import AsyncIdempotentTransport, IdempotentTransport
from testing.upstreams import Upstream, answering

ANSWER = b"HTTP/1.1 201 Created\r\ncontent-length: 2\r\n\r\n{}"

ALIASED = "import httpx2; httpx2.alias_httpx()"
ALONE = "import sys; sys.modules['httpx'] = None"  # as where it isn't installed

PAYS = """
import asyncio, sys, httpx2
from oncegate.client import AsyncIdempotentTransport, IdempotentTransport

async def pay(url):
    async with httpx2.AsyncClient(transport=AsyncIdempotentTransport()) as http:
        print((await http.post(url, json={})).status_code)

with httpx2.Client(transport=IdempotentTransport()) as http:
    print(http.post(sys.argv[1], json={}).status_code)
asyncio.run(pay(sys.argv[1]))
"""


@pytest.mark.parametrize("first", [ALIASED, ALONE])
async def test_it_sends_with_a_key_under_httpx2(first: str) -> None:
    async with Upstream(answering(ANSWER)) as upstream:
        command = [sys.executable, "-c", f"{first}\n{PAYS}", upstream.url]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)
        assert (done.stdout, done.stderr) == ("201\n201\n", "")
        keys = {request.value("idempotency-key") for request in upstream.requests}
        assert len(keys) == 2
        assert None not in keys


async def test_a_client_of_the_other_package_is_refused_before_anything_is_sent() -> None:
    def pay(url: str) -> None:
        with httpx2.Client(transport=IdempotentTransport()) as http:  # type: ignore[arg-type]  # that is what is tested
            http.post(url)

    async with Upstream(answering(ANSWER)) as upstream:
        with pytest.raises(TypeError, match="alias_httpx"):
            await asyncio.to_thread(pay, upstream.url)
        async with httpx2.AsyncClient(transport=AsyncIdempotentTransport()) as there:  # type: ignore[arg-type]  # the same
            with pytest.raises(TypeError, match="alias_httpx"):
                await there.post(upstream.url)
        assert upstream.arrivals == 0
