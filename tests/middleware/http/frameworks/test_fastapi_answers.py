"""What docs/faq.md says of a FastAPI app's own answers and their keys."""

from typing import Any

import pytest
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from oncegate.cache.record import State
from oncegate.middleware.rules.settings import Route as Rules
from tests.middleware.conftest import MakeDoor

JSON = [("content-type", "application/json")]


class Payment(BaseModel):
    amount: int


@pytest.mark.parametrize("status", [502, 504])
async def test_a_handler_s_own_gateway_error_blocks_its_key_until_somebody_has_looked(
    door: MakeDoor, status: int
) -> None:
    app = FastAPI()

    @app.post("/payments")
    async def pay() -> None:
        raise HTTPException(status)

    there = door(app)
    assert (await there.send()).status == status
    assert await there.state() is State.UNKNOWN
    assert (await there.send()).code == "outcome-unknown"
    claim = await there.claim()
    assert 86_000_000 < claim.remaining_ms <= 86_400_000
    released = door(app, routes=[Rules(path="/payments", status={status: "release"})])
    for _ in range(2):
        assert (await released.send(key="k-2")).status == status


async def test_replay_of_an_error_is_what_the_app_s_handler_for_exceptions_said(door: MakeDoor) -> None:
    app = FastAPI()

    @app.exception_handler(Exception)
    async def shown(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"why": str(error)}, 500, headers={"x-why": "broken"})

    @app.post("/payments")
    async def pay() -> None:
        raise ValueError("broken")

    there = door(app, on_error="replay")
    with pytest.raises(ValueError, match="broken"):  # Starlette answers, then raises for the server's log
        await there.send()
    replay = await there.send()
    assert (replay.status, replay.body, replay.value("x-why")) == (500, b'{"why":"broken"}', "broken")
    assert replay.replayed


@pytest.mark.parametrize(("meaning", "status"), [("failure", 422), ("release", 200)])
async def test_body_corrected_after_fastapi_s_own_422(door: MakeDoor, meaning: Any, status: int) -> None:
    app = FastAPI()

    @app.post("/payments")
    async def pay(payment: Payment) -> int:
        return payment.amount

    there = door(app, routes=[Rules(path="/payments", status={422: meaning})])
    assert (await there.send(b'{"amount": "one"}', headers=JSON)).status == 422
    corrected = await there.send(b'{"amount": 1}', headers=JSON)
    assert corrected.status == status
    assert meaning == "release" or corrected.code == "key-reused"


async def test_multipart_form_with_a_new_boundary_is_another_payload(door: MakeDoor) -> None:
    app = FastAPI()

    @app.post("/payments")
    async def pay(request: Request) -> int:
        return len(await request.body())

    there = door(app)
    codes = []
    for boundary in ("one", "one", "two"):
        part = 'content-disposition: form-data; name="file"; filename="a"'
        body = f"--{boundary}\r\n{part}\r\n\r\ntext\r\n--{boundary}--\r\n".encode()
        answer = await there.send(body, headers=[("content-type", f"multipart/form-data; boundary={boundary}")])
        codes.append(answer.status)
    assert codes == [200, 200, 422]
