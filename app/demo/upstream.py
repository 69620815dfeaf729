"""The demo's payments service, without idempotency of its own: every request that reaches it makes a payment."""

import asyncio
import socket
import threading
from collections.abc import Callable
from typing import Any

import orjson
import uvicorn

SLOW_SECONDS = 5.0


class Payments:
    """An ASGI app. ``tell`` is called with a line for each request that it has answered; ``calls`` counts the POSTs."""

    def __init__(self, tell: Callable[[str], None], slow_seconds: float = SLOW_SECONDS) -> None:
        self.calls = 0
        self.payments: list[dict[str, Any]] = []
        self._tell = tell
        self._slow_seconds = slow_seconds

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """ASGI 3."""
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        status, answer = await self._answer(scope["method"], scope["path"].rstrip("/"), body)
        self._tell(f"{scope['method']} {scope['path']} -> {status}")
        content = orjson.dumps(answer) + b"\n"
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    async def _answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        if path not in ("/payments", "/payments/slow"):
            return 404, {"error": "try /payments"}
        if method == "GET":
            return 200, self.payments
        if method != "POST":
            return 405, {"error": "GET or POST"}
        self.calls += 1
        if path == "/payments/slow":
            await asyncio.sleep(self._slow_seconds)
        return self._pay(body)

    def _pay(self, body: bytes) -> tuple[int, Any]:
        try:
            amount = orjson.loads(body)["amount"]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return 400, {"error": 'send {"amount": 100}'}
        if not isinstance(amount, int) or amount <= 0:
            return 402, {"error": "declined", "amount": amount}
        payment = {"id": f"pay_{len(self.payments) + 1}", "amount": amount}
        self.payments.append(payment)
        return 201, payment


class PaymentsServer:
    """Runs `Payments` over HTTP on a free loopback port, in a thread of its own, as a context manager."""

    def __init__(self, app: Payments) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(app, lifespan="off", ws="none", log_config=None, access_log=False, server_header=False)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name="payments")

    @property
    def url(self) -> str:
        """Its URL, known from the start: a client that connects early waits."""
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def __enter__(self) -> "PaymentsServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._thread.join()
