"""The demo's payments service, without idempotency of its own: every request that reaches it makes a payment."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import orjson
import uvicorn

from oncegate.middleware.http.asgi import respond

SLOW_SECONDS = 5.0


class Payments:
    """An ASGI app. ``report`` is called with a line for each request that it has answered; ``calls`` counts the POSTs."""

    def __init__(self, report: Callable[[str], None], slow_seconds: float = SLOW_SECONDS) -> None:
        self.calls = 0
        self.payments: list[dict[str, Any]] = []
        self._report = report
        self._slow_seconds = slow_seconds

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """ASGI 3."""
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        status, answer = await self._answer(scope["method"], scope["path"].rstrip("/"), body)
        self._report(f"{scope['method']} {scope['path']} -> {status}")
        content = orjson.dumps(answer) + b"\n"
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
        await respond(send, status, headers, content)

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


@contextmanager
def serving(payments: Payments) -> Iterator[str]:
    """Serves ``payments`` over HTTP on a free loopback port, in a thread of its own; gives the URL."""
    bound = socket.create_server(("127.0.0.1", 0))  # a client that connects early waits
    config = uvicorn.Config(payments, lifespan="off", ws="none", log_config=None, access_log=False, server_header=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([bound],), name="payments")
    thread.start()
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        thread.join()
