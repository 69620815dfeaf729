"""Starlette's test client around an app with the middleware: event loops that come and go, lifespans or none."""

import warnings
from typing import Any

import pytest
from fastapi import FastAPI, WebSocket
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from oncegate.cache.memory.store import MemoryCache
from oncegate.cache.store import Cache
from oncegate.middleware.http.middleware import IdempotencyMiddleware

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it would rather have a successor of httpx
    from starlette.testclient import TestClient

KEY = {"Idempotency-Key": "k-1"}


def paying(cache: Cache, **options: Any) -> Starlette:
    made: list[bytes] = []

    async def pay(request: Request) -> Response:
        made.append(await request.body())
        return JSONResponse({"id": len(made)}, 201)

    gate = Middleware(IdempotencyMiddleware, cache=cache, **options)
    return Starlette(routes=[Route("/payments", pay, methods=["POST"])], middleware=[gate])


@pytest.mark.parametrize("lifespan", [True, False])
def test_test_client_with_and_without_a_lifespan(lifespan: bool) -> None:
    """Without one, each request has an event loop of its own, which ends with it."""
    http = TestClient(paying(MemoryCache()))
    if lifespan:
        with http:
            answers = [http.post("/payments", json={}, headers=KEY) for _ in range(3)]
    else:
        answers = [http.post("/payments", json={}, headers=KEY) for _ in range(3)]
    assert [answer.json() for answer in answers] == [{"id": 1}] * 3
    assert [answer.headers.get("idempotent-replayed") for answer in answers] == [None, "true", "true"]


def test_test_client_s_blocks_can_follow_one_another() -> None:
    app = paying(MemoryCache())
    for replayed in (None, "true"):
        with TestClient(app) as http:
            assert http.post("/payments", headers=KEY).headers.get("idempotent-replayed") == replayed


def test_websockets_pass() -> None:
    app = FastAPI()
    app.add_middleware(IdempotencyMiddleware, cache=MemoryCache())

    @app.websocket("/ws")
    async def echo(socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_text(await socket.receive_text())
        await socket.close()

    with TestClient(app) as http, http.websocket_connect("/ws") as socket:
        socket.send_text("hello")
        assert socket.receive_text() == "hello"
