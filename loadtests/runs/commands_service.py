"""The service of `loadtests.runs.commands` that commands are forwarded to: it books as the handler does, now and then slower than
the gateway in front of it waits.
"""

import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from loadtests.runs.commands_handler import open_books

RESPONSE_TIMEOUT = 0.3
"""Seconds for which its own gateway waits for an answer, then 504 and 409 until it is there."""
SLOW, SLOW_ONE_IN = 1.5, 5
"""Seconds that a slow answer takes, and in how many requests there is one."""


@contextmanager
def slow_service(books: str) -> Iterator[str]:
    """Its URL, while it is there."""

    class Booking(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            key = self.headers["idempotency-key"]
            if zlib.crc32(key.encode()) % SLOW_ONE_IN == 0:
                time.sleep(SLOW)
            connection = open_books(books)
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT OR IGNORE INTO booked VALUES (?)", (key,))
            connection.execute(
                "INSERT INTO entered VALUES (?, ?)", (key, int(self.headers.get("idempotency-attempt", "1")))
            )
            connection.execute("COMMIT")
            connection.close()
            self.send_response(201)
            self.send_header("content-length", "0")
            self.end_headers()

        def do_HEAD(self) -> None:
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: a line for each request would hide the progress."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Booking)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
