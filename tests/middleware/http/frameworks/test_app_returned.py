"""Code of an app that runs after its response: FastAPI's dependencies with ``yield``, background tasks, and what they raise.

Rules of docs/contract.md: R3.25, R3.26, R12.35.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI
from starlette.background import BackgroundTask
from starlette.responses import JSONResponse
from starlette.routing import Mount

from oncegate import IdempotencyMiddleware, IdempotencySettings, MemoryCache, Route, idempotent
from oncegate.cache.record import State
from oncegate.fastapi import document
from testing.waiting import until
from tests.middleware.door import PATIENCE, Door


class Books:
    """A session's end, as in FastAPI's own recipe: it waits for the gate, and may fail."""

    def __init__(self, error: Exception | None = None) -> None:
        self.gate = asyncio.Event()
        self.ends = 0
        self.rows = 0
        self._error = error

    async def session(self) -> AsyncIterator[None]:
        yield
        self.ends += 1
        await self.gate.wait()
        if self._error is not None:
            raise self._error
        self.rows += 1


def shop(session: Any, scope: Any = None) -> FastAPI:
    app = FastAPI()

    @app.post("/payments", status_code=201)
    async def pay(_: Annotated[None, Depends(session, scope=scope)]) -> dict[str, bool]:
        return {"paid": True}

    return app


async def test_a_success_is_recorded_once_the_session_has_committed() -> None:
    books = Books()
    there = Door(shop(books.session), MemoryCache(), "n")
    call = there.begin()
    await until(lambda: books.ends)
    assert await there.state() is State.IN_FLIGHT
    assert not call.done
    books.gate.set()
    assert (await call.answered()).status == 201
    assert await there.state() is State.SUCCEEDED
    assert (await there.send()).replayed
    assert books.rows == 1


async def test_a_commit_that_fails_leaves_no_success(caplog: pytest.LogCaptureFixture) -> None:
    books = Books(RuntimeError("the secret of the database"))
    books.gate.set()
    there = Door(shop(books.session), MemoryCache(), "n")
    call = await there.send()
    assert (call.status, call.code) == (502, "upstream-failed")
    assert await there.state() is State.UNKNOWN
    assert f"record {call.problem['record']}: the app raised RuntimeError after its last byte" in caplog.text
    assert (await there.send()).code == "outcome-unknown"


async def test_a_dependency_of_the_function_s_scope_ends_before_the_response() -> None:
    books = Books(RuntimeError("no"))
    books.gate.set()
    there = Door(shop(books.session, "function"), MemoryCache(), "n", on_error="replay")
    with pytest.raises(RuntimeError, match="no"):
        await there.send()
    assert await there.state() is State.FAILED


async def test_without_such_a_dependency_nobody_waits_for_what_comes_later() -> None:
    gate, app = asyncio.Event(), FastAPI()

    @app.post("/payments", status_code=201)
    async def pay(tasks: BackgroundTasks) -> dict[str, bool]:
        tasks.add_task(gate.wait)
        return {"paid": True}

    there = Door(app, MemoryCache(), "n")
    call = there.begin()
    await until(lambda: call.done)
    await there.becomes(State.SUCCEEDED)
    gate.set()
    await call.answered()


async def test_with_app_returned_any_app_s_background_task_comes_first() -> None:
    gate = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await JSONResponse({}, 201, background=BackgroundTask(gate.wait))(scope, receive, send)

    there = Door(app, MemoryCache(), "n", complete="app-returned")
    call = there.begin()
    await until(lambda: there.slots)
    for _ in range(20):
        await asyncio.sleep(0)
    assert (call.done, await there.state()) == (False, State.IN_FLIGHT)
    gate.set()
    assert (await call.answered()).status == 201
    assert (await there.send()).replayed


async def test_an_app_that_raises_after_its_last_byte_is_logged_and_what_was_recorded_stays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    books = Books(RuntimeError("no"))
    books.gate.set()
    there = Door(shop(books.session), MemoryCache(), "n", complete="response")
    call = there.begin()
    with pytest.raises(RuntimeError, match="no"):
        await call.answered()
    assert call.status == 201
    await until(lambda: "the app raised RuntimeError after its last byte: what was recorded stays" in caplog.text)
    assert (await there.send()).replayed


@pytest.mark.parametrize("how", ["of the app", "of the router", "of its inclusion", "of another one"])
async def test_a_session_is_seen_wherever_it_is_named(how: str) -> None:
    books = Books()
    given = [Depends(books.session)]
    app = FastAPI(dependencies=given if how == "of the app" else [])
    router = APIRouter(dependencies=given if how == "of the router" else [])

    def other(_: Annotated[None, Depends(books.session)]) -> None:
        return None

    @router.post("/payments", status_code=201, dependencies=[Depends(other)] if how == "of another one" else [])
    async def pay() -> None:
        return None

    app.include_router(router, dependencies=given if how == "of its inclusion" else [])
    there = Door(app, MemoryCache(), "n")
    call = there.begin()
    await until(lambda: books.ends)
    assert await there.state() is State.IN_FLIGHT
    books.gate.set()
    assert (await call.answered()).status == 201


async def test_a_process_s_end_behind_the_last_byte_leaves_no_client_waiting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What is recorded once the app has returned is cut off with it: nobody is given a response whose outcome is unknown."""
    began = asyncio.Event()

    async def late() -> None:
        began.set()
        await asyncio.Event().wait()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await JSONResponse({}, 201, background=BackgroundTask(late))(scope, receive, send)

    there = Door(app, MemoryCache(), "n", complete="app-returned")
    call = there.begin()
    async with asyncio.timeout(PATIENCE):
        await began.wait()
    in_flight = there.middleware.admissions.in_flight
    in_flight.closing = True
    (attempt,) = in_flight._attempts.values()
    assert attempt.lease.task is not None
    attempt.lease.task.cancel()
    done, _ = await asyncio.wait([call.task], timeout=PATIENCE)
    assert done, "its client waits for ever"
    assert not call.done
    assert await there.state() is State.IN_FLIGHT, "the lease is left to lapse"


class Session:
    def __call__(self) -> Iterator[None]:
        yield


async def outer() -> AsyncIterator[None]:
    yield


def inner(_: Annotated[None, Depends(outer)]) -> None:
    return None


def nested() -> FastAPI:
    app = FastAPI()
    router = APIRouter(dependencies=[Depends(Session())])

    @router.post("/payments")
    async def pay(_: Annotated[None, Depends(inner)]) -> None:
        return None

    app.include_router(router, prefix="/v1")
    return app


@pytest.mark.parametrize("mounted", [False, True])
async def test_the_first_request_names_routes_and_dependencies(mounted: bool, caplog: pytest.LogCaptureFixture) -> None:
    app = nested()
    if mounted:
        outside = FastAPI()
        outside.mount("/shop", app)
        app = outside
    app.add_middleware(IdempotencyMiddleware, cache=MemoryCache())
    for _ in range(2):
        await Door(app, MemoryCache(), "n").send(path="/elsewhere", app=app)
    (line,) = [each for each in caplog.messages if "ends after the response" in each]
    assert line.startswith("/shop/v1/payments: " if mounted else "/v1/payments: ")
    assert "outer" in line
    assert "Session" in line
    assert 'scope="function"' in line


def of_methods() -> FastAPI:
    app = FastAPI()

    @app.post("/items")
    async def add() -> None:
        return None

    @app.get("/prices/{id}")
    async def price(id: int) -> None:
        return None

    return app


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/itms", 'did you mean "/items"?'),
        ("/items/", 'did you mean "/items"?'),
        ("/prices/7", "there it has GET alone"),
        ("/nothing/like/it", "is it below a mount"),
    ],
)
async def test_a_route_that_matches_no_path_is_named(path: str, hint: str, caplog: pytest.LogCaptureFixture) -> None:
    app = of_methods()
    app.add_middleware(IdempotencyMiddleware, cache=MemoryCache(), routes=[Route(path=path), Route(path="/items")])
    document(app)
    with pytest.raises(ValueError, match="matches no path of the app and guards nothing") as error:
        app.openapi()
    assert hint in str(error.value)
    assert '"/items" (' not in str(error.value)
    await Door(app, MemoryCache(), "n").send(path="/items", app=app)
    assert [(each.levelno, hint in each.message) for each in caplog.records if "guards nothing" in each.message] == [
        (logging.ERROR, True)
    ]


@pytest.mark.parametrize(
    "routes",
    [
        [Route(path="/items")],
        [Route(path="/i*")],
        [Route(path="/prices/7", methods=["GET"])],
        [Route(path="*", methods=[])],
    ],
)
def test_a_route_that_matches_a_path_is_right(routes: list[Route]) -> None:
    app = of_methods()
    app.add_middleware(IdempotencyMiddleware, cache=MemoryCache(), routes=routes)
    document(app)
    assert app.openapi()["paths"]


def test_what_is_below_a_mount_that_can_t_be_read_is_right() -> None:
    async def foreign(*_: Any) -> None: ...

    app = of_methods()
    app.router.routes.append(Mount("/other", foreign))
    app.add_middleware(IdempotencyMiddleware, cache=MemoryCache(), routes=[Route(path="/other/items")])
    document(app)
    assert app.openapi()["paths"]


def wrong_way(decorate: Callable[[Any], Any]) -> FastAPI:
    app = FastAPI()

    @decorate
    @app.post("/payments")
    async def pay(key: str) -> None:
        return None

    return app


async def test_a_decorator_above_the_registration_is_named(caplog: pytest.LogCaptureFixture) -> None:
    app = wrong_way(idempotent(cache=MemoryCache(), key=lambda key: key))
    document(app, settings=IdempotencySettings())
    app.openapi()
    assert "@idempotent protects nothing at /payments" in caplog.text
    caplog.clear()
    right = FastAPI()

    @right.post("/payments")
    @idempotent(cache=MemoryCache(), key=lambda key: key)
    async def pay(key: str) -> None:
        return None

    document(right, settings=IdempotencySettings())
    right.openapi()
    assert "protects nothing" not in caplog.text
