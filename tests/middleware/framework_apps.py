"""The same app in every framework that the middleware is put into: what a test calls, and what it counts."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from types import ModuleType
from typing import Any, NoReturn

import blacksheep
import litestar
import quart
from django.conf import settings as django_settings
from django.core.asgi import get_asgi_application
from django.http import HttpResponse, JsonResponse, StreamingHttpResponse
from django.urls import clear_url_caches
from django.urls import path as django_path
from fastapi import FastAPI, HTTPException
from fastapi.responses import StreamingResponse as FastAPIStream
from litestar.exceptions import HTTPException as LitestarError
from litestar.response import Stream
from starlette.applications import Starlette
from starlette.exceptions import HTTPException as StarletteError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

KEY = "idempotency-key"


class Calls:
    """What the app's endpoints did. ``held`` ones wait until `go`."""

    def __init__(self) -> None:
        self.count = 0
        self.uploaded = 0
        self.go = asyncio.Event()
        self.arrived = asyncio.Event()

    def made(self) -> dict[str, int]:
        self.count += 1
        return {"id": self.count}

    def broken(self) -> NoReturn:
        self.count += 1
        raise ValueError("broken")

    def took(self, body: bytes | str) -> dict[str, int]:
        self.uploaded = len(body)
        return self.made()

    async def made_late(self) -> dict[str, int]:
        self.count += 1
        self.arrived.set()
        await self.go.wait()
        return {"id": self.count}

    def echoed(self, text: str, key: str | None) -> str:
        self.count += 1
        return f"{text}, {key}"

    async def chunks(self) -> AsyncIterator[bytes]:
        self.count += 1
        yield b"one"
        self.arrived.set()
        await self.go.wait()
        yield b"two"


def starlette(calls: Calls) -> Any:
    async def pay(request: Request) -> Response:
        return JSONResponse(calls.made(), 201)

    async def late(request: Request) -> Response:
        return JSONResponse(await calls.made_late(), 201)

    async def declined(request: Request) -> Response:
        calls.made()
        raise StarletteError(402)

    async def broken(request: Request) -> Response:
        calls.broken()

    async def stream(request: Request) -> Response:
        return StreamingResponse(calls.chunks())

    async def upload(request: Request) -> Response:
        return JSONResponse(calls.took(await request.body()), 201)

    endpoints = (pay, late, declined, broken, stream, upload)
    routes = [Route(f"/{each.__name__}", each, methods=["POST"]) for each in endpoints]
    return Starlette(routes=[*routes, WebSocketRoute("/talk", _talk_by_starlette(calls))])


def _talk_by_starlette(calls: Calls) -> Callable[[WebSocket], Awaitable[None]]:
    async def talk(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text(calls.echoed(await websocket.receive_text(), websocket.headers.get(KEY)))
        await websocket.close()

    return talk


def fastapi(calls: Calls) -> Any:
    app = FastAPI()

    @app.post("/pay", status_code=201)
    async def pay() -> dict[str, int]:
        return calls.made()

    @app.post("/late", status_code=201)
    async def late() -> dict[str, int]:
        return await calls.made_late()

    @app.post("/declined")
    async def declined() -> None:
        calls.made()
        raise HTTPException(402)

    @app.post("/broken")
    async def broken() -> None:
        calls.broken()

    @app.post("/stream")
    async def stream() -> FastAPIStream:
        return FastAPIStream(calls.chunks())

    @app.post("/upload", status_code=201)
    async def upload(request: Request) -> dict[str, int]:
        return calls.took(await request.body())

    app.websocket("/talk")(_talk_by_starlette(calls))
    return app


def litestar_app(calls: Calls) -> Any:
    @litestar.post("/pay")
    async def pay() -> dict[str, int]:
        return calls.made()

    @litestar.post("/late")
    async def late() -> dict[str, int]:
        return await calls.made_late()

    @litestar.post("/declined")
    async def declined() -> None:
        calls.made()
        raise LitestarError(status_code=402)

    @litestar.post("/broken")
    async def broken() -> None:
        calls.broken()

    @litestar.post("/stream", status_code=200)
    async def stream() -> Stream:
        return Stream(calls.chunks())

    @litestar.post("/upload")
    async def upload(request: litestar.Request[Any, Any, Any]) -> dict[str, int]:
        return calls.took(await request.body())

    @litestar.websocket("/talk")
    async def talk(socket: litestar.WebSocket[Any, Any, Any]) -> None:
        await socket.accept()
        await socket.send_text(calls.echoed(await socket.receive_text(), socket.headers.get(KEY)))
        await socket.close()

    return litestar.Litestar([pay, late, declined, broken, stream, upload, talk], openapi_config=None)


def quart_app(calls: Calls) -> Any:
    app = quart.Quart("shop")

    @app.post("/pay")
    async def pay() -> Any:
        return calls.made(), 201

    @app.post("/late")
    async def late() -> Any:
        return await calls.made_late(), 201

    @app.post("/declined")
    async def declined() -> Any:
        calls.made()
        return "declined", 402

    @app.post("/broken")
    async def broken() -> Any:
        calls.broken()

    @app.post("/stream")
    async def stream() -> Any:
        return calls.chunks()

    @app.post("/upload")
    async def upload() -> Any:
        return calls.took(await quart.request.get_data()), 201

    @app.websocket("/talk")
    async def talk() -> None:
        text = str(await quart.websocket.receive())
        await quart.websocket.send(calls.echoed(text, quart.websocket.headers.get(KEY)))

    return app


def django(calls: Calls) -> Any:
    async def pay(request: Any) -> Any:
        return JsonResponse(calls.made(), status=201)

    async def late(request: Any) -> Any:
        return JsonResponse(await calls.made_late(), status=201)

    async def declined(request: Any) -> Any:
        calls.made()
        return HttpResponse("declined", status=402)

    async def broken(request: Any) -> Any:
        calls.broken()

    async def stream(request: Any) -> Any:
        return StreamingHttpResponse(calls.chunks())

    async def upload(request: Any) -> Any:
        return JsonResponse(calls.took(request.body), status=201)

    if not django_settings.configured:
        django_settings.configure(
            ALLOWED_HOSTS=["*"], SECRET_KEY="of tests", LOGGING_CONFIG=None, DATA_UPLOAD_MAX_MEMORY_SIZE=None
        )
    urls = ModuleType("urls")
    urls.urlpatterns = [django_path(each.__name__, each) for each in (pay, late, declined, broken, stream, upload)]  # type: ignore[attr-defined]  # a module of its own
    django_settings.ROOT_URLCONF = urls
    clear_url_caches()
    http = get_asgi_application()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        """Django itself knows HTTP alone. What routes by the scope's type needs no channels: Django's documentation shows it."""
        if scope["type"] != "websocket":
            await http(scope, receive, send)
            return
        await WebSocketRoute("/talk", _talk_by_starlette(calls)).handle(scope, receive, send)

    return application


async def blacksheep_app(calls: Calls) -> Any:
    app = blacksheep.Application(router=blacksheep.Router())

    @app.router.post("/pay")
    async def pay() -> blacksheep.Response:
        return blacksheep.json(calls.made(), 201)

    @app.router.post("/late")
    async def late() -> blacksheep.Response:
        return blacksheep.json(await calls.made_late(), 201)

    @app.router.post("/declined")
    async def declined() -> blacksheep.Response:
        calls.made()
        return blacksheep.text("declined", 402)

    @app.router.post("/broken")
    async def broken() -> blacksheep.Response:
        calls.broken()

    @app.router.post("/stream")
    async def stream() -> blacksheep.Response:
        return blacksheep.Response(200, content=blacksheep.StreamedContent(b"text/plain", calls.chunks))

    @app.router.post("/upload")
    async def upload(request: blacksheep.Request) -> blacksheep.Response:
        return blacksheep.json(calls.took(await request.read() or b""), 201)

    @app.router.ws("/talk")
    async def talk(websocket: blacksheep.WebSocket) -> None:
        await websocket.accept()
        key = websocket.get_first_header(KEY.encode())
        await websocket.send_text(calls.echoed(await websocket.receive_text(), key.decode() if key else None))
        await websocket.close()

    await app.start()  # type: ignore[no-untyped-call]  # blacksheep does not annotate it
    return app


async def _at_once(app: Any) -> Any:
    return app


FRAMEWORKS: dict[str, Callable[[Calls], Awaitable[Any]]] = {
    "starlette": lambda calls: _at_once(starlette(calls)),
    "fastapi": lambda calls: _at_once(fastapi(calls)),
    "litestar": lambda calls: _at_once(litestar_app(calls)),
    "quart": lambda calls: _at_once(quart_app(calls)),
    "django": lambda calls: _at_once(django(calls)),
    "blacksheep": blacksheep_app,
}
