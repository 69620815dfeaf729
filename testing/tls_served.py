"""A gateway that speaks TLS, in the test's own event loop, accepted by the gateway's own acceptor."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from uvicorn.server import ServerState

from oncegate.app.factory import create_gateway
from oncegate.app.gateway_server import server_config
from oncegate.app.server.accept import Acceptor, bind
from oncegate.app.server.connection import InboundConnection
from oncegate.app.settings.certificates import ListenerTls
from oncegate.app.settings.gateway import GatewaySettings
from testing.certificates import NAME, Authority
from testing.upstreams import PATIENCE


class Listening:
    """A gateway that speaks TLS, in the test's own loop."""

    def __init__(self, tls: ListenerTls, settings: GatewaySettings, port: int, authority: Authority) -> None:
        self.tls, self.settings, self.port = tls, settings, port
        self._authority = authority

    def client(self) -> httpx.AsyncClient:
        url = f"https://{NAME}:{self.port}"
        return httpx.AsyncClient(base_url=url, verify=self._authority.client(), timeout=PATIENCE, trust_env=False)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        context = self._authority.client()
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=context, server_hostname=NAME)


@asynccontextmanager
async def listening(authority: Authority, upstream: str, **given: Any) -> AsyncIterator[Listening]:
    cert, key = authority.issue()
    opened = {"public": ("metrics",), "tls_cert": str(cert), "tls_key": str(key)}
    settings = GatewaySettings(upstream=upstream, **{**opened, **given})
    tls = ListenerTls.of(settings)
    assert tls is not None
    gateway = create_gateway(settings, tls=tls)
    config, state = server_config(gateway), ServerState()
    config.load()
    await gateway.lifespan.start()
    (bound,) = bind("127.0.0.1", 0)
    bound.listen()
    acceptor = Acceptor([bound], lambda: InboundConnection(config, state, {}), state.connections, None, tls)
    acceptor.start()
    try:
        yield Listening(tls, settings, bound.getsockname()[1], authority)
    finally:
        acceptor.stop()
        bound.close()
        for connection in list(state.connections):
            connection.shutdown()
        async with asyncio.timeout(PATIENCE):
            while state.connections:  # noqa: ASYNC110 - uvicorn's set tells nobody
                await asyncio.sleep(0.001)
        await gateway.lifespan.stop()
