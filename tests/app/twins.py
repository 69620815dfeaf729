"""A gateway that answers on the fast path what it can (oncegate.app.gateway.fast_path), or nothing."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http.cookiejar import DefaultCookiePolicy
from typing import Any
from uuid import uuid4

import httpx

from oncegate.app.gateway.gateway import Gateway
from oncegate.app.server.request import InboundRequest
from testing.served import served
from testing.upstreams import Peer, Request, Upstream

ROUTES: list[dict[str, Any]] = [{"path": "/retried/*", "on_unknown": "retry"}]
HEAD = b"HTTP/1.1 %d Of-Its-Own\r\nx-two: 1\r\nset-cookie: a=b\r\nX-Two: 2\r\ndate: Sat, 01 Jan 2000 00:00:00 GMT\r\n"
REPLIES = {
    "201": HEAD % 201 + b"content-length: %d\r\n\r\n%b",
    "200": HEAD % 200 + b"content-length: %d\r\ncache-control: no-store\r\n\r\n%b",
    "held": HEAD % 201 + b"content-length: %d\r\n\r\n%b",
    "cut": HEAD % 201 + b"content-length: 1%d\r\n\r\n%b",
}
"""What the upstream answers, by the request's ``x-reply``; ``held`` is 201, once ``go`` is set; behind ``cut`` it ends the
connection."""


@dataclass
class Twin:
    """Such a gateway. ``heard`` is what its upstream got; ``asked`` counts requests, ``taken`` those on the fast path."""

    client: httpx.AsyncClient
    gateway: Gateway
    heard: list[tuple[Any, ...]] = field(default_factory=list)
    asked: int = 0
    taken: int = 0
    go: asyncio.Event = field(default_factory=asyncio.Event)

    async def told(self, **request: Any) -> tuple[Any, ...]:
        """Status and body of the answer; the error's name where there is none."""
        try:
            answer = await self.client.request(**request)
        except httpx.HTTPError as error:
            return (type(error).__name__,)
        return (answer.status_code, answer.content)


@asynccontextmanager
async def twin(fast_path: bool, **settings: Any) -> AsyncIterator[Twin]:
    """A gateway with the fast path, or without it, on an upstream of its own."""
    arrivals: Counter[tuple[str, str | None]] = Counter()

    async def behave(peer: Peer) -> None:
        while True:
            request = await peer.request()
            made.heard.append((request.line, sorted(request.fields), request.body))
            key = request.value("idempotency-key")
            arrivals[request.line, key] += key is not None  # others may come in any order
            reply = request.value("x-reply") or "200"
            if reply == "held":
                await made.go.wait()
            await peer.send(_reply(reply, request, arrivals[request.line, key]))
            if reply == "cut":
                return

    def counting(request: InboundRequest) -> bool:
        taken = fast_path and direct is not None and direct(request)
        made.asked += 1
        made.taken += taken
        return taken

    async with (
        Upstream(behave) as upstream,
        served(upstream.url, routes=ROUTES, **{"namespace": uuid4().hex} | settings) as (client, gateway),
    ):
        # A client that brings back a Cookie without a credential is refused, and one answer here sets some.
        client.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        made = Twin(client, gateway)
        direct = gateway.direct
        gateway.direct = counting
        yield made


def _reply(name: str, request: Request, number: int) -> bytes:
    body = f"{request.line} for the {number}. time".encode() + request.body
    return REPLIES[name] % (len(body), body)
