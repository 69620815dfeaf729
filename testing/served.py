"""A gateway in the test's own event loop, on a real port and with the server configuration that `oncegate serve` uses."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from oncegate.app.factory import create_gateway
from oncegate.app.gateway.gateway import Gateway
from oncegate.app.gateway_server import server_config
from oncegate.app.operators.reloading import Reload
from oncegate.app.server.accept import bind
from oncegate.app.settings.gateway import GatewaySettings
from testing.running import running
from testing.upstreams import PATIENCE


@asynccontextmanager
async def served(
    upstream: str, *, admin_token: str | None = None, reload: Reload | None = None, **settings: Any
) -> AsyncIterator[tuple[httpx.AsyncClient, Gateway]]:
    """A client of the gateway, and the gateway. What can be public is, unless told otherwise."""
    settings.setdefault("public", ["metrics", "policy", "docs"])
    gateway = create_gateway(GatewaySettings(upstream=upstream, **settings), admin_token=admin_token, reload=reload)
    sockets = bind("127.0.0.1", 0)
    url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
    # Without `verify` no authorities are read, which takes longer than most of what is asked here.
    client = httpx.AsyncClient(base_url=url, timeout=PATIENCE, verify=False)
    async with running(server_config(gateway), sockets), client:
        yield client, gateway


async def connected(client: httpx.AsyncClient) -> None:
    """Returns when the gateway has a connection to its upstream, so that a time limit is over in no other state."""
    while (await client.get("/")).status_code != 200:
        pass


async def raw(client: httpx.AsyncClient, request: bytes) -> bytes:
    """What comes back for the bytes of ``request``, until the gateway closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
    writer.write(request)
    try:
        async with asyncio.timeout(PATIENCE):
            return await reader.read()
    finally:
        writer.close()
