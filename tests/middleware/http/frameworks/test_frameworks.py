"""The middleware in Starlette and FastAPI apps: as they send, wrap, mount and test.

Rules of docs/contract.md: R7.7.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from time import monotonic
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import BackgroundTasks, FastAPI, HTTPException
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from oncegate.cache.record import State
from oncegate.cache.store import Cache
from oncegate.middleware.http.middleware import IdempotencyMiddleware
from oncegate.middleware.rules.settings import Route as Rules
from testing.running import running
from tests.middleware.conftest import MakeDoor
from tests.middleware.door import Answering, Door

KEY = {"Idempotency-Key": "k-1"}


def client(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://api.example")


async def test_fastapi_app_gets_it_by_add_middleware(cache: Cache, namespace: str) -> None:
    app = FastAPI()
    app.add_middleware(IdempotencyMiddleware, cache=cache, namespace=namespace)
    made: list[dict[str, Any]] = []

    @app.post("/payments", status_code=201)
    async def pay(payment: dict[str, Any]) -> dict[str, Any]:
        made.append(payment)
        return {"id": len(made)}

    async with client(app) as http:
        first = await http.post("/payments", json={"amount": 1}, headers=KEY)
        retry = await http.post("/payments", json={"amount": 1}, headers=KEY)
        other = await http.post("/payments", json={"amount": 2}, headers=KEY)
    assert (first.status_code, first.json()) == (201, {"id": 1})
    assert (retry.status_code, retry.json(), retry.headers["idempotent-replayed"]) == (201, {"id": 1}, "true")
    assert other.json()["code"] == "key-reused"
    assert made == [{"amount": 1}]


async def test_fastapi_http_exception_is_its_response(door: MakeDoor) -> None:
    app = FastAPI()
    calls = 0

    @app.post("/payments")
    async def pay() -> None:
        nonlocal calls
        calls += 1
        raise HTTPException(429 if calls == 1 else 402, headers={"x-why": "funds"})

    there = door(app, on_error="replay")
    assert (await there.send()).status == 429
    assert (await there.send()).status == 402
    replay = await there.send()
    assert (replay.status, replay.replayed, replay.value("x-why")) == (402, True, "funds")
    assert calls == 2


async def test_exception_of_an_endpoint_is_answered_recorded_and_raised(door: MakeDoor) -> None:
    """Starlette answers 500, then raises for the server's log: both go through, and the record is the 500."""

    async def broken(request: Request) -> Response:
        raise ValueError("broken")

    there = door(Starlette(routes=[Route("/payments", broken, methods=["POST"])]), on_error="replay")
    call = there.begin()
    with pytest.raises(ValueError, match="broken"):
        await call.answered()
    assert (call.status, call.body, call.done) == (500, b"Internal Server Error", True)
    replay = await there.send()
    assert (replay.status, replay.body, replay.replayed) == (500, b"Internal Server Error", True)


async def test_background_task_runs_after_the_record_is_complete(door: MakeDoor) -> None:
    """The response is there before the task has ended, and a task that raises changes nothing of it."""
    seen: list[State] = []
    go = asyncio.Event()

    async def later() -> None:
        seen.append(await there.state())
        await go.wait()
        raise ValueError("in the background")

    async def pay(request: Request) -> Response:
        return JSONResponse({"id": 1}, 201, background=BackgroundTask(later))

    there = door(Starlette(routes=[Route("/payments", pay, methods=["POST"])]))
    call = there.begin()
    await call.started.wait()
    retry = await there.send()
    assert (retry.status, retry.replayed) == (201, True)
    assert not go.is_set()
    go.set()
    with pytest.raises(ValueError, match="background"):
        await call.answered()
    assert (call.status, call.body) == (201, b'{"id":1}')
    assert seen == [State.SUCCEEDED]
    assert (await there.send()).replayed


async def test_background_tasks_of_fastapi_run_once(door: MakeDoor) -> None:
    app = FastAPI()
    done: list[int] = []

    @app.post("/payments")
    async def pay(tasks: BackgroundTasks) -> dict[str, int]:
        tasks.add_task(done.append, 1)
        return {"id": 1}

    there = door(app)
    for _ in range(3):
        assert (await there.send()).status == 200
    assert done == [1]


async def test_streaming_response_is_streamed_and_replayed(door: MakeDoor) -> None:
    go = asyncio.Event()

    async def chunks() -> AsyncIterator[bytes]:
        yield b"one"
        await go.wait()
        yield b"two"

    async def pay(request: Request) -> Response:
        assert await request.json() == {"amount": 1}
        return StreamingResponse(chunks(), media_type="application/x-ndjson")

    there = door(Starlette(routes=[Route("/payments", pay, methods=["POST"])]))
    call = there.begin()
    await call.started.wait()
    assert not call.done
    go.set()
    assert (await call.answered()).body == b"onetwo"
    assert (await there.send()).body == b"onetwo"


async def test_file_response_is_captured_whatever_the_server_offers(door: MakeDoor, tmp_path: Any) -> None:
    """By ASGI's pathsend a response would go out that nobody could keep."""
    file = tmp_path / "receipt.pdf"
    file.write_bytes(bytes(range(256)) * 1000)

    async def pay(request: Request) -> Response:
        return FileResponse(file)

    there = door(Starlette(routes=[Route("/payments", pay, methods=["POST"])]))
    offered = {"http.response.pathsend": {}, "http.response.trailers": {}, "tls": {"client": "1"}}
    first = await there.send(extensions=offered)
    assert first.body == file.read_bytes()
    file.unlink()
    assert (await there.send(extensions=offered)).body == first.body


class Wrapping(BaseHTTPMiddleware):
    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        response = await call_next(request)
        response.headers["x-wrapped"] = "yes"
        return response


@pytest.mark.parametrize("where", ["around", "within"])
async def test_base_http_middleware_around_and_within(door: MakeDoor, where: str) -> None:
    app = Answering(201)
    there = door(Wrapping(app) if where == "within" else app)
    door_or_around = Wrapping(there.middleware) if where == "around" else there.middleware
    first = await there.send(app=door_or_around)
    replay = await there.send(app=door_or_around)
    assert (first.status, replay.status, replay.replayed) == (201, 201, True)
    assert first.value("x-wrapped") == replay.value("x-wrapped") == "yes"
    assert app.calls == 1


async def test_base_http_middleware_around_whose_client_leaves_does_not_end_the_attempt(door: MakeDoor) -> None:
    there = door(app := Answering(201, held=True))
    call = there.begin(app=Wrapping(there.middleware))
    await app.arrivals()
    call.left.set()
    await call.gone()
    app.release()
    await there.becomes(State.SUCCEEDED)
    assert app.calls == 1


async def test_gzip_within_is_replayed_byte_for_byte(door: MakeDoor) -> None:
    there = door(GZipMiddleware(Answering(200, body=b"text" * 1000), minimum_size=10))
    headers = [("accept-encoding", "gzip")]
    first, replay = await there.send(headers=headers), await there.send(headers=headers)
    assert first.value("content-encoding") == replay.value("content-encoding") == "gzip"
    assert replay.replayed
    assert replay.body == first.body


async def test_mounted_app_is_enforced_with_its_full_path(door: MakeDoor) -> None:
    async def pay(request: Request) -> Response:
        return Response(request.url.path, 201)

    inner = Starlette(routes=[Route("/payments", pay, methods=["POST"])])
    there = door(inner)
    outer = Starlette(routes=[Mount("/v1", there.middleware), Mount("/v2", there.middleware)])
    first = await there.send(app=outer, path="/v1/payments")
    assert (first.status, first.body) == (201, b"/v1/payments")
    assert (await there.send(app=outer, path="/v1/payments")).replayed
    assert (await there.send(app=outer, path="/v2/payments")).code == "key-reused"


async def test_observer_is_told_of_each_answer_and_its_errors_go_no_further(door: MakeDoor) -> None:
    observed: list[tuple[str, int, int, str, str]] = []
    seconds: list[float] = []
    began = monotonic()

    def observe(observation: Any) -> None:
        observed.append(
            (observation.decision, observation.status, observation.attempt, observation.route, observation.method)
        )
        seconds.append(observation.seconds)
        raise RuntimeError("of the observer")  # nothing is asserted here: it would go no further either

    routes = [Rules(path="/p*", methods=["POST", "DELETE"])]
    there: Door = door(Answering(500, 201), observe=observe, routes=routes)
    for request in (
        {}, {}, {}, {"body": b"other"}, {"key": None, "method": "DELETE"}, {"key": "", "method": "PATCH"},
        {"method": "GET"},
    ):  # fmt: skip
        assert (await there.send(**request)).done
    assert observed == [
        ("first", 500, 1, "/p*", "POST"),
        ("first", 201, 2, "/p*", "POST"),
        ("replayed", 201, 2, "/p*", "POST"),
        ("key-reused", 422, 2, "/p*", "POST"),
        ("bypass", 201, 0, "/p*", "DELETE"),
        ("key-invalid", 400, 0, "*", "PATCH"),
    ]
    assert len(seconds) == len(observed)
    assert all(0 < each < monotonic() - began for each in seconds)


@pytest.mark.parametrize("root", ["", "/api"])
async def test_routes_match_under_a_server_s_root_path_and_in_a_mounted_app(
    cache: Cache, namespace: str, root: str
) -> None:
    """A real uvicorn, which puts ``--root-path`` before each path; a mount does the same for the app in it."""

    async def paid(request: Request) -> Response:
        return JSONResponse({"path": request.url.path}, 201)

    rules = [Rules(path="/payments/{id:int}", on_missing_key="reject")]
    options: dict[str, Any] = {"cache": cache, "routes": rules}
    inner = Starlette(routes=[Route("/payments/{id:int}", paid, methods=["POST"])])
    inner.add_middleware(IdempotencyMiddleware, namespace=namespace + "-mounted", **options)
    app = Starlette(routes=[Route("/payments/{id:int}", paid, methods=["POST"]), Mount("/shop", inner)])
    app.add_middleware(IdempotencyMiddleware, namespace=namespace, **options)
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, root_path=root, log_config=None, lifespan="off")
    async with (
        running(config, [listener]),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}") as there,
    ):
        for path in ("/payments/1", "/shop/payments/1"):
            assert (await there.post(path)).json()["code"] == "key-missing", path
            assert (await there.post(path, headers={"Idempotency-Key": path})).status_code == 201
