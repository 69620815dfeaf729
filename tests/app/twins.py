"""Two gateways that differ in one thing: one answers on the fast path what it can (oncegate.app.gateway.fast_path), the other
nothing."""

import asyncio
import re
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

ROUTES: list[dict[str, Any]] = [
    {"path": "/replayed/*", "on_error": "replay"},
    {"path": "/retried/*", "on_unknown": "retry"},
    {"path": "/small/*", "max_request_body": 100, "max_response_body": 100},
    {"path": "/keyed/*", "require_key": True, "require_scope": True},
    {"path": "/warned/*", "on_mismatch": "warn", "fingerprint": "json", "raise_on_duplicate": True},
    {"path": "/statuses/*", "status": {402: "success", 200: "release", 500: "unknown"}},
]
HEAD = b"HTTP/1.1 %d Of-Its-Own\r\nx-two: 1\r\nset-cookie: a=b\r\nX-Two: 2\r\ndate: Sat, 01 Jan 2000 00:00:00 GMT\r\n"
REPLIES = {
    "201": HEAD % 201 + b"content-length: %d\r\n\r\n%b",
    "200": HEAD % 200 + b"content-length: %d\r\ncache-control: no-store\r\n\r\n%b",
    "303": HEAD % 303 + b"location: /there\r\ncontent-length: %d\r\n\r\n%b",
    "401": HEAD % 401 + b"content-length: %d\r\n\r\n%b",
    "402": HEAD % 402 + b"content-length: %d\r\n\r\n%b",
    "500": HEAD % 500 + b"content-length: %d\r\n\r\n%b",
    "502": HEAD % 502 + b"content-length: %d\r\n\r\n%b",
    "204": HEAD % 204 + b"\r\n",
    "304": HEAD % 304 + b"content-length: 20\r\n\r\n",
    "nothing": HEAD % 201 + b"content-length: 0\r\n\r\n",
    "in chunks": HEAD % 201 + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n",
    "closes": HEAD % 201 + b"connection: close\r\ncontent-length: %d\r\n\r\n%b",
    "until it closes": HEAD % 201 + b"connection: close\r\n\r\n%b",
    "after a hint": b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + HEAD % 201 + b"content-length: %d\r\n\r\n%b",
    "marked": HEAD % 201 + b"idempotent-replayed: true\r\ncontent-length: %d\r\n\r\n%b",
    "no word": b"",
    "no HTTP": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    "long": HEAD % 201 + b"content-length: %d\r\n\r\n%b",
    "held": HEAD % 201 + b"content-length: %d\r\n\r\n%b",
    "cut": HEAD % 201 + b"content-length: 1%d\r\n\r\n%b",
    "behind itself": HEAD % 201 + b"content-length: %d\r\n\r\n%b" + HEAD % 200,
}
"""What the upstream answers, by the request's ``x-reply``; ``held`` is 201, once ``go`` is set."""
ENDS = {"closes", "until it closes", "cut", "no word", "no HTTP", "behind itself"}
"""Those after which it ends the connection."""


@dataclass
class Twin:
    """One of the two. ``heard`` is what its upstream got; ``asked`` counts requests, ``taken`` those on the fast path."""

    client: httpx.AsyncClient
    gateway: Gateway
    heard: list[tuple[Any, ...]] = field(default_factory=list)
    asked: int = 0
    taken: int = 0
    go: asyncio.Event = field(default_factory=asyncio.Event)

    async def told(self, **request: Any) -> tuple[Any, ...]:
        """What comes back for a request, without what differs from one second to the next."""
        try:
            answer = await self.client.request(**request)
        except httpx.HTTPError as error:
            return (type(error).__name__,)
        body = re.sub(rb'"completed_at":"[^"]*"', b"", answer.content)
        same = {b"date": b"", b"content-length": b""} if body != answer.content else {b"date": b""}
        headers = [
            (name, same.get(name.lower(), re.sub(rb"ttl=\d+", b"ttl=", value))) for name, value in answer.headers.raw
        ]
        return (answer.status_code, answer.http_version, headers, body)

    async def counted(self) -> list[str]:
        """Its metrics, without sizes and durations."""
        lines = (await self.client.get("/_oncegate/metrics")).text.splitlines()
        return [
            line for line in lines if line.startswith("oncegate_") and not re.search("seconds|bytes|build|start", line)
        ]


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
            if reply in ENDS:
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
    body = b"" if request.line.startswith("HEAD") else f"{request.line} for the {number}. time".encode() + request.body
    if name == "behind itself":
        body = b"whole"  # in one piece with what is behind it
    body *= 20 if name == "long" else 1
    template = REPLIES[name]
    count = template.count(b"%")
    return template if not count else template % ((len(body), body) if count == 2 else (body,))
