"""A payments service that notes in a run what it gets, books and answers; its books know the keys that it was given."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from testing.pictures.events import Act, Message, Run
from testing.waiting import PATIENCE

SERVICE = "payments service"


class Payments:
    """The service at ``url``. It has booked ``books``; while ``open`` is not set, it has what it got and answers nobody."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.gateway = next(party for party in run.parties if party.startswith("gateway"))
        """Whose requests come in: one at a time in these runs."""
        self.books: dict[str, dict[str, int]] = {}
        self.open = threading.Event()
        self.booked = threading.Event()
        """Set each time that a payment was booked."""
        self.url = ""

    def pay(self, key: str, attempt: str, amount: int) -> dict[str, int]:
        """Book a payment under ``key``, or find the one that is booked."""
        gateway = self.gateway
        self.run.note(Message(gateway, SERVICE, f"POST, key {key}, attempt {attempt}"))
        known = key in self.books
        payment = self.books.setdefault(key, {"payment": len(self.books) + 1, "amount": amount})
        words = f"knows {key}: books nothing" if known else f"books payment {payment['payment']}"
        self.run.note(Act(SERVICE, words))
        self.booked.set()
        if not self.open.wait(PATIENCE):
            raise TimeoutError("nobody has let the service answer")
        return payment


@contextmanager
def payments(run: Run) -> Iterator[Payments]:
    """A service on a free port, for the length of the context."""
    service = Payments(run)

    class Payment(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            amount = json.loads(self.rfile.read(int(self.headers["content-length"])))["amount"]
            gateway = service.gateway
            payment = service.pay(self.headers["idempotency-key"], self.headers["idempotency-attempt"], amount)
            if gateway == service.gateway:  # else it is gone
                run.note(Message(SERVICE, gateway, f"201, payment {payment['payment']}"))
            self._answer(201, payment)

        def do_GET(self) -> None:
            self._answer(200, service.books[self.path.rpartition("/")[2]])

        def _answer(self, status: int, payment: dict[str, int]) -> None:
            body = json.dumps(payment).encode()
            try:
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except OSError:  # whoever asked was killed
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: the run has it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Payment)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    service.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield service
    finally:
        service.open.set()
        server.shutdown()
        server.server_close()
