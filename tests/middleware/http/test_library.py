"""`oncegate` as a library in FastAPI apps: its API page, browsers, threads, sync endpoints, and what stands beside it."""

import asyncio
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import httpx
import pytest
from fastapi import FastAPI, Header
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware

from oncegate import EXPOSED_HEADERS, REQUEST_HEADERS, IdempotencyMiddleware, IdempotencySettings, MemoryCache, Route
from oncegate.cache.record import ClaimRequest
from oncegate.fastapi import document
from oncegate.middleware.rules.headers.added_headers import ADDED_HEADERS
from tests.middleware.door import PATIENCE

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it would rather have a successor of httpx
    from starlette.testclient import TestClient

KEY = {"Idempotency-Key": "k-1"}
ORIGIN = {"Origin": "https://shop.example"}


def paying(**options: Any) -> tuple[FastAPI, list[Any]]:
    """An app with a sync endpoint; ``options`` are the middleware's."""
    app = FastAPI()
    app.add_middleware(IdempotencyMiddleware, cache=options.pop("cache", None) or MemoryCache(), **options)
    made: list[Any] = []

    @app.post("/payments/{shop}")
    def pay(shop: str, amount: int = 1) -> dict[str, int]:
        made.append((shop, amount))
        return {"id": len(made)}

    return app, made


# -- the API page -----------------------------------------------------------------------------------------------------


def page(app: FastAPI) -> Any:
    with TestClient(app) as http:
        return http.get("/openapi.json").json()


def key_of(operation: Any) -> Any:
    return [each for each in operation.get("parameters", ()) if each["name"] == "Idempotency-Key"]


def test_one_line_documents_what_is_enforced() -> None:
    app, _ = paying(settings=IdempotencySettings(on_missing_key="reject"))
    document(app)
    operation = page(app)["paths"]["/payments/{shop}"]["post"]
    assert key_of(operation)[0]["required"] is True
    assert {"400", "409", "422"} <= set(operation["responses"])
    # FastAPI's own 422 stays beside ours.
    assert set(operation["responses"]["422"]["content"]) == {"application/json", "application/problem+json"}


def test_the_page_follows_the_routes_policies_and_routes_that_are_added_later() -> None:
    app, _ = paying(routes=[Route(path="/payments/*", on_missing_key="reject")])
    document(app)
    first = app.openapi()
    assert app.openapi() is first, "generated anew for each request"

    @app.post("/refunds")
    def refund() -> None: ...

    paths = page(app)["paths"]
    assert key_of(paths["/payments/{shop}"]["post"])[0]["required"] is True
    assert key_of(paths["/refunds"]["post"])[0]["required"] is False


def test_the_line_may_stand_before_the_middleware() -> None:
    app = FastAPI()
    document(app)
    app.post("/payments")(lambda: None)
    with pytest.raises(RuntimeError, match="IdempotencyMiddleware"):
        app.openapi()
    app.add_middleware(IdempotencyMiddleware, cache=MemoryCache())
    assert key_of(app.openapi()["paths"]["/payments"]["post"])


def test_a_header_that_the_endpoint_declares_itself_is_not_doubled() -> None:
    app, _ = paying()

    @app.post("/orders")
    def order(idempotency_key: Annotated[str | None, Header()] = None) -> None: ...

    document(app)
    parameters = app.openapi()["paths"]["/orders"]["post"]["parameters"]
    assert [each["name"] for each in parameters] == ["idempotency-key"]


def test_a_mounted_app_is_documented_by_the_rules_around_it() -> None:
    routes = [Route(path="/v1/payments/*", on_missing_key="reject")]
    inner, _ = paying()
    inner.user_middleware.clear()
    document(inner, routes=routes, prefix="/v1")
    outer = FastAPI()
    outer.add_middleware(IdempotencyMiddleware, cache=MemoryCache(), routes=routes)
    outer.mount("/v1", inner)
    with TestClient(outer) as http:
        operation = http.get("/v1/openapi.json").json()["paths"]["/payments/{shop}"]["post"]
        assert key_of(operation)[0]["required"] is True
        assert http.post("/v1/payments/a").json()["code"] == "key-missing"
        assert [http.post("/v1/payments/a", headers=KEY).json() for _ in range(2)] == [{"id": 1}] * 2


def test_the_core_needs_nothing_of_the_extras() -> None:
    code = (
        "import sys; sys.modules['fastapi'] = sys.modules['starlette'] = sys.modules['httpx'] = None\n"
        "sys.modules['faststream'] = sys.modules['httpx2'] = None\n"
        "import oncegate\n"
        "for name in oncegate.__all__: getattr(oncegate, name)\n"
        "import oncegate.app.cli.main, oncegate.app.factory, oncegate.middleware.http.apps.openapi\n"
        "for name in ('client', 'fastapi', 'faststream'):\n"
        "    try: __import__(f'oncegate.{name}')\n"
        "    except ImportError as error: assert f'oncegate[{name}]' in str(error), error\n"
        "    else: raise SystemExit(name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# -- browsers ---------------------------------------------------------------------------------------------------------


def shared(app: FastAPI) -> FastAPI:
    app.add_middleware(
        CORSMiddleware,
        allow_origins=[ORIGIN["Origin"], "https://other.example"],
        allow_methods=["POST"],
        allow_headers=REQUEST_HEADERS,
        expose_headers=EXPOSED_HEADERS,
    )
    return app


def test_a_browser_may_send_a_key_and_read_what_became_of_it() -> None:
    app, made = paying()
    requested = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "idempotency-key,prefer"}
    with TestClient(shared(app)) as http:
        preflight = http.options("/payments/a", headers=ORIGIN | requested)
        assert preflight.status_code == 200
        answers = [http.post("/payments/a", headers=ORIGIN | KEY) for _ in range(2)]
        answers.append(http.post("/payments/b", headers=ORIGIN | KEY))
    assert [answer.status_code for answer in answers] == [200, 200, 422]
    for answer in answers:
        assert answer.headers["access-control-allow-origin"] == ORIGIN["Origin"]
        exposed = {name.strip().lower() for name in answer.headers["access-control-expose-headers"].split(",")}
        assert exposed == {each.name.lower() for each in ADDED_HEADERS if each.is_exposed}
    assert len(made) == 1


def test_a_replay_is_shared_with_the_origin_that_asks_and_not_with_the_first_one() -> None:
    app, _ = paying()
    with TestClient(shared(app)) as http:
        for origin in (ORIGIN["Origin"], "https://other.example"):
            answer = http.post("/payments/a", headers={"Origin": origin} | KEY)
            assert answer.headers.get_list("access-control-allow-origin") == [origin]
        assert "access-control-allow-origin" not in http.post("/payments/a", headers=KEY).headers


# -- what stands beside it --------------------------------------------------------------------------------------------


def test_gzip_around_it_compresses_a_replay_for_who_wants_that() -> None:
    app = FastAPI()
    app.add_middleware(IdempotencyMiddleware, cache=MemoryCache())
    app.add_middleware(GZipMiddleware, minimum_size=10)
    app.post("/texts")(lambda: "text" * 1000)
    with TestClient(app) as http:
        for encoding in ("gzip", "identity", "gzip"):
            answer = http.post("/texts", headers=KEY | {"Accept-Encoding": encoding})
            assert answer.json() == "text" * 1000
            assert answer.headers.get("content-encoding") == ("gzip" if encoding == "gzip" else None)


def test_base_http_middleware_around_and_within_at_once() -> None:
    app, made = paying()

    async def count(request: Any, call_next: Any) -> Any:
        response = await call_next(request)
        response.headers["x-passed"] = str(int(response.headers.get("x-passed", "0")) + 1)
        return response

    app.add_middleware(BaseHTTPMiddleware, dispatch=count)
    app.user_middleware.append(app.user_middleware[0])  # the innermost, too
    with TestClient(app) as http:
        answers = [http.post("/payments/a", headers=KEY) for _ in range(2)]
    assert [answer.headers["x-passed"] for answer in answers] == ["2", "2"]
    assert [answer.headers.get("idempotent-replayed") for answer in answers] == [None, "true"]
    assert len(made) == 1


async def test_a_sync_endpoint_is_executed_once_for_many_at_once() -> None:
    app, made = paying()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://a") as http:
        headers = KEY | {"Prefer": "wait=30"}
        answers = await asyncio.gather(*[http.post("/payments/a", headers=headers) for _ in range(10)])
    assert [answer.json() for answer in answers] == [{"id": 1}] * 10
    assert len(made) == 1


# -- event loops in several threads -----------------------------------------------------------------------------------


@pytest.fixture
def hasty() -> Any:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hasty")
def test_of_duplicates_from_many_threads_with_a_loop_each_one_is_executed() -> None:
    app, made = paying()
    http = TestClient(app)
    together = threading.Barrier(4)

    def post(number: int) -> list[int]:
        statuses = []
        for key in range(10):
            together.wait(PATIENCE)
            answer = http.post("/payments/a", headers={"Idempotency-Key": f"k-{key}", "Prefer": "wait=30"})
            statuses.append(answer.status_code)
        return statuses

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(post, range(4))) == [[200] * 10] * 4
    assert len(made) == 10


@pytest.mark.usefixtures("hasty")
def test_the_memory_cache_is_whole_after_many_threads_have_used_it() -> None:
    """Claims, completions and expiry from several loops at once: one claim of a key is won, and the bytes add up."""
    now = 0.0
    cache = MemoryCache(clock=lambda: now)
    won: list[int] = []

    async def claim(thread: int) -> None:
        for number in range(300):
            token = b"%015d%d" % (number, thread)
            key = f"n:{number}"
            claim = await cache.claim(
                key, ClaimRequest(token=token, fingerprint=bytes(16), lease_ms=1000, retention_ms=1000 + number)
            )
            if claim.won:
                won.append(number)

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(lambda thread: asyncio.run(claim(thread)), range(6)))
    assert sorted(won) == list(range(300))
    now = 1e6

    async def sweep() -> None:
        for number in range(20):
            await cache.claim(
                f"m:{number}", ClaimRequest(token=bytes(16), fingerprint=bytes(16), lease_ms=1, retention_ms=0)
            )
            assert await cache.release(f"m:{number}", token=bytes(16))

    asyncio.run(sweep())
    assert (len(cache), cache.size_bytes) == (0, 0)


def test_a_shutdown_counts_the_attempts_of_another_loop_and_does_not_wait_for_them() -> None:
    began, go = threading.Event(), threading.Event()
    app = FastAPI()
    made: list[IdempotencyMiddleware] = []

    @app.post("/payments")
    def pay() -> int:
        began.set()
        assert go.wait(PATIENCE)
        return 1

    def middleware(app: Any) -> IdempotencyMiddleware:
        made.append(IdempotencyMiddleware(app, cache=MemoryCache()))
        return made[-1]

    app.add_middleware(middleware)
    with ThreadPoolExecutor(1) as thread:
        call = thread.submit(TestClient(app).post, "/payments", headers=KEY)
        assert began.wait(PATIENCE)
        assert asyncio.run(made[0].drain(PATIENCE)) == 1
        go.set()
        assert call.result(PATIENCE).status_code == 200
    assert asyncio.run(made[0].drain(PATIENCE)) == 0
