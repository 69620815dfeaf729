"""The demo's payments service, without idempotency of its own: every request that reaches it makes a payment."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import orjson
import uvicorn

from oncegate.app.demo.books import BookEntry, Books
from oncegate.middleware.http.asgi import respond

SLOW_SECONDS = 5.0
SLOW, SLOW_ANSWER = "/payments/slow", "/payments/slow-answer"
Progress = Literal["arrived", "booked"]


class Payments:
    """The service as an ASGI app.

    ``report`` is called with a line for each request that it has answered, ``progress`` as soon as a POST is in its books, and
    again once its payment is.
    A POST to `SLOW` is booked after ``slow_seconds``; one to `SLOW_ANSWER` is booked at once, and answered after as long.
    """

    def __init__(
        self,
        report: Callable[[str], None],
        slow_seconds: float = SLOW_SECONDS,
        books: Books | None = None,
        progress: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        self.books = books or Books()
        self._report = report
        self._progress = progress
        self._slow_seconds = slow_seconds

    @property
    def calls(self) -> int:
        """The POSTs that arrived."""
        return len(self.books.entries)

    @property
    def payments(self) -> list[dict[str, Any]]:
        """The payments that were made."""
        return self.books.payments

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """ASGI 3."""
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        key = next((value for name, value in scope["headers"] if name == b"idempotency-key"), b"").decode("latin-1")
        status, answer = await self._answer(scope["method"], scope["path"].rstrip("/"), key, body)
        self._report(f"{scope['method']} {scope['path']} -> {status}")
        content = orjson.dumps(answer) + b"\n"
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
        await respond(send, status, headers, content)

    async def _answer(self, method: str, path: str, key: str, body: bytes) -> tuple[int, Any]:
        if path == "/books" and method == "GET":
            return 200, self.books.document()
        if path not in ("/payments", SLOW, SLOW_ANSWER):
            return 404, {"error": "try /payments"}
        if method == "GET":
            return 200, self.payments
        if method != "POST":
            return 405, {"error": "GET or POST"}
        entry = self.books.arrive(key, path, body)
        self._progress("arrived")
        if path == SLOW:
            await asyncio.sleep(self._slow_seconds)
        answer = self._pay(entry, body)
        if path == SLOW_ANSWER:
            await asyncio.sleep(self._slow_seconds)
        return answer

    def _pay(self, entry: BookEntry, body: bytes) -> tuple[int, Any]:
        try:
            amount = orjson.loads(body)["amount"]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return 400, {"error": 'send {"amount": 100}'}
        if not isinstance(amount, int) or amount <= 0:
            return 402, {"error": "declined", "amount": amount}
        payment = self.books.book(entry, amount)
        self._progress("booked")
        return 201, payment


def serving_config(app: Any) -> uvicorn.Config:
    """uvicorn's configuration for an app of the demo's: nothing logged, nothing added."""
    return uvicorn.Config(app, lifespan="off", ws="none", log_config=None, access_log=False, server_header=False)


@contextmanager
def serving(payments: Payments) -> Iterator[str]:
    """Serves ``payments`` over HTTP on a free loopback port, in a thread of its own; gives the URL."""
    bound = socket.create_server(("127.0.0.1", 0))  # a client that connects early waits
    server = uvicorn.Server(serving_config(payments))
    thread = threading.Thread(target=server.run, args=([bound],), name="payments")
    thread.start()
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        thread.join()
