"""The FastAPI app of `scripts/bench middleware`, with one of the middlewares, or alone.

    python -m loadtests.app MIDDLEWARE PORT REDIS_URL [frozen] [patient]

It does what such apps do: validates a body, makes an object, validates and serialises it. It counts its executions, and
every answer differs, so that a replay can be told from an execution.
"""

import asyncio
import contextlib
import gc
import sys
from collections.abc import AsyncIterator
from hashlib import blake2b
from typing import TYPE_CHECKING, Annotated

import uvicorn
from fastapi import FastAPI, Response
from pydantic import BaseModel, Field
from starlette.types import ASGIApp, Receive, Scope, Send

if TYPE_CHECKING:
    from oncegate import RedisCache

MIDDLEWARES = ("alone", "oncegate", "idemkit", "asgi-idempotency-header")
FLOOR = "floor"
"""A middleware that reads the request and answers at once, always the same, with as many field lines as a replay has, without
a look at anything: no replay can be faster in this place."""
REDIS_FLOOR = "floor, with Redis"
"""The same after what no replay can do without: a digest of the key, one of the payload, and one round trip to Redis, over
oncegate's own connection, for a record that isn't there. It compares nothing and has nothing to decode."""
HELD_AT_MOST = 30.0
"""Seconds that ``/slow`` waits for ``/go``."""
TIMEOUT, PATIENCE = 0.5, 10.0
"""Seconds that an app waits for Redis: oncegate's default, and those of a ``patient`` one."""
SPACED = '{ "big": 1234567890123456789,\n  "small": 1.0, "execution": %d }'


class Item(BaseModel):
    """One line of an order."""

    sku: str
    count: int


class Order(BaseModel):
    """What requests.lua sends."""

    amount: int = Field(gt=0)
    currency: str
    customer: str
    order: str
    items: list[Item]
    note: str = ""


class Payment(BaseModel):
    """What comes back: about 300 bytes of JSON."""

    id: str
    status: str
    amount: int
    currency: str
    customer: str
    items: list[Item]
    note: str


@contextlib.asynccontextmanager
async def _freeze(_: FastAPI) -> AsyncIterator[None]:
    """What an app may do once it has started (docs/decisions/0009-hot-path.md): no run of the collector is of all of it again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    yield


def create(middleware: str, redis_url: str, *, frozen: bool = False, patient: bool = False) -> FastAPI:
    """The app with one of `MIDDLEWARES`, each set up as its documentation says, or with a floor."""
    app = FastAPI(lifespan=_freeze if frozen else None)
    executions = 0
    going = asyncio.Event()

    def execution() -> int:
        nonlocal executions
        executions += 1
        return executions

    @app.post("/payments", status_code=201)
    async def pay(order: Order, response: Response) -> Payment:
        number = execution()
        response.headers["location"] = f"/payments/{number}"
        return Payment(id=f"pay_{number}", status="succeeded", **order.model_dump())

    @app.post("/slow")
    async def slow() -> dict[str, int]:
        number = execution()
        going.clear()
        async with asyncio.timeout(HELD_AT_MOST):
            await going.wait()
        return {"execution": number}

    @app.get("/go")
    async def go() -> None:
        going.set()

    @app.post("/spaced")
    async def spaced() -> Response:
        return Response(SPACED % execution(), media_type="application/json")

    @app.post("/text")
    async def text() -> Response:
        return Response(f"execution {execution()}", media_type="text/plain")

    @app.get("/executions")
    async def executed() -> int:
        return executions

    @app.get("/frozen")
    async def freezes() -> bool:
        return gc.get_freeze_count() > 0

    _add(app, middleware, redis_url, PATIENCE if patient else TIMEOUT)
    return app


class _Floor:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._body = b"f" * 300
        self._headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"300"),
            (b"location", b"/payments/1"),
            (b"idempotency-key", b"floor-1"),
            (b"idempotent-replayed", b"true"),
            (b"cache-status", b"oncegate; hit; ttl=86399"),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        message = await receive()
        await self._read(scope, message["body"])
        await send({"type": "http.response.start", "status": 201, "headers": self._headers})
        await send({"type": "http.response.body", "body": self._body})

    async def _read(self, scope: Scope, body: bytes) -> None:
        """Nothing to look at."""


class _RedisFloor(_Floor):
    def __init__(self, app: ASGIApp, cache: "RedisCache") -> None:
        super().__init__(app)
        self._cache = cache

    async def _read(self, scope: Scope, body: bytes) -> None:
        key = next(value for name, value in scope["headers"] if name == b"idempotency-key")
        blake2b(body, digest_size=16).digest()
        await self._cache.get(blake2b(key, digest_size=15).hexdigest())


def _add(app: FastAPI, middleware: str, redis_url: str, timeout: float) -> None:
    if middleware == FLOOR:
        app.add_middleware(_Floor)
    elif middleware == REDIS_FLOOR:
        from oncegate import RedisCache

        app.add_middleware(_RedisFloor, cache=RedisCache.from_url(redis_url, timeout=timeout))
    elif middleware == "oncegate":
        from oncegate import IdempotencyMiddleware, RedisCache

        app.add_middleware(IdempotencyMiddleware, cache=RedisCache.from_url(redis_url, timeout=timeout))
    elif middleware == "idemkit":
        import idemkit

        def caller(request: Annotated[object, "idemkit's proxy of a request"]) -> str:
            return request.headers.get("authorization", "")  # type: ignore[attr-defined, no-any-return]  # its type is not public

        app.add_middleware(
            idemkit.IdempotencyMiddleware,
            backend=idemkit.RedisBackend.from_url(redis_url),
            config=idemkit.HttpConfig(scope=caller),
        )
    elif middleware == "asgi-idempotency-header":
        from idempotency_header_middleware import IdempotencyHeaderMiddleware
        from idempotency_header_middleware.backends import RedisBackend
        from redis.asyncio import Redis

        app.add_middleware(IdempotencyHeaderMiddleware, backend=RedisBackend(redis=Redis.from_url(redis_url)))


def main() -> None:
    """Serve it on loopback."""
    middleware, port, redis_url, *words = sys.argv[1:]
    uvicorn.run(
        create(middleware, redis_url, frozen="frozen" in words, patient="patient" in words),
        host="127.0.0.1", port=int(port),
        log_level="warning", access_log=False, loop="uvloop", http="httptools",
    )  # fmt: skip


if __name__ == "__main__":
    main()
