"""Other middlewares around and within ours: each row of the table in docs/faq.md."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, AuthenticationError, SimpleUser
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from oncegate import EXPOSED_HEADERS, IdempotencyMiddleware, IdempotencySettings, MemoryCache

ORIGIN = {"Origin": "https://shop.example"}
KEY = {"Idempotency-Key": "k-1", "Authorization": "Bearer a"}


class Tokens(AuthenticationBackend):
    """Knows everybody who has a token, by it."""

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, SimpleUser] | None:
        token = conn.headers.get("authorization")
        if token == "Bearer revoked":
            raise AuthenticationError("no longer")
        return (AuthCredentials(), SimpleUser(token)) if token else None


OTHERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "CORS": (CORSMiddleware, {"allow_origins": ["https://shop.example"], "expose_headers": EXPOSED_HEADERS}),
    "GZip": (GZipMiddleware, {"minimum_size": 1}),
    "Session": (SessionMiddleware, {"secret_key": "of tests"}),
    "Authentication": (AuthenticationMiddleware, {"backend": Tokens()}),
}


def shop(other: str, where: str, **options: Any) -> httpx.AsyncClient:
    async def pay(request: Request) -> Response:
        if "session" in request.scope:
            request.session["paid"] = True
        return JSONResponse({"text": "x" * 100}, 201)

    app = Starlette(routes=[Route("/payments", pay, methods=["POST"])])
    kind, its_options = OTHERS[other]
    settings = IdempotencySettings(on_missing_key="reject")
    if where == "inside":
        app.add_middleware(kind, **its_options)
    app.add_middleware(IdempotencyMiddleware, cache=MemoryCache(), settings=settings, **options)
    if where == "outside":
        app.add_middleware(kind, **its_options)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://api.example")


@pytest.mark.parametrize("where", ["outside", "inside"])
async def test_cors(where: str) -> None:
    async with shop("CORS", where) as http:
        problem = await http.post("/payments", headers=ORIGIN)
        await http.post("/payments", headers=KEY)
        replay = await http.post("/payments", headers=KEY | ORIGIN)
    assert problem.json()["code"] == "key-missing"
    assert replay.headers["idempotent-replayed"] == "true"
    for answer in (problem, replay):
        assert ("access-control-allow-origin" in answer.headers) is (where == "outside")


@pytest.mark.parametrize("where", ["outside", "inside"])
async def test_gzip(where: str) -> None:
    async with shop("GZip", where) as http:
        first = await http.post("/payments", headers=KEY | {"Accept-Encoding": "gzip"})
        replay = await http.post("/payments", headers=KEY | {"Accept-Encoding": "identity"})
    assert first.headers["content-encoding"] == "gzip"
    assert replay.headers["idempotent-replayed"] == "true"
    assert ("content-encoding" in replay.headers) is (where == "inside"), "inside: as it was for the first request"
    assert replay.json() == first.json()


@pytest.mark.parametrize("where", ["outside", "inside"])
async def test_session(where: str) -> None:
    async with shop("Session", where) as http:
        first = await http.post("/payments", headers=KEY)
        http.cookies.clear()
        replay = await http.post("/payments", headers=KEY)
    assert "set-cookie" in first.headers
    assert replay.headers["idempotent-replayed"] == "true"
    assert "set-cookie" not in replay.headers


@pytest.mark.parametrize("where", ["outside", "inside"])
async def test_authentication(where: str) -> None:
    revoked = KEY | {"Authorization": "Bearer revoked"}
    async with shop("Authentication", where) as http:
        refused = await http.post("/payments", headers=revoked)
        assert refused.status_code == 400
        assert ("cache-status" in refused.headers) is (where == "inside"), "outside: it takes no key"
    async with shop("Authentication", where, caller=lambda scope: scope["user"].display_name) as http:
        first, retry = [await http.post("/payments", headers=KEY) for _ in range(2)]
        if where == "inside":
            assert (first.status_code, first.json()["code"]) == (500, "caller-failed")
        else:
            assert (first.status_code, retry.headers["idempotent-replayed"]) == (201, "true")


def test_each_row_of_the_table_is_one_of_these() -> None:
    page = (Path(__file__).parents[4] / "docs" / "faq.md").read_text()
    rows = [line.split("|")[1:3] for line in page.splitlines() if "Middleware` |" in line]
    assert {(name.strip(" `"), where.strip()) for name, where in rows} == {
        (f"{name}Middleware", where) for name in OTHERS for where in ("outside", "inside")
    }
