"""A server whose answer never ends: it sends how it begins, and then a few bytes again and again, each of which comes in time."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
DRIPS = {
    "head": (b"HTTP/1.1 200 OK\r\n", b"x-a: b\r\n"),
    "status": (b"HTTP/1.1 200 ", b"O"),
    "interim answers": (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
    "chunk line": (CHUNKED + b"1;", b"a"),
    "chunks": (CHUNKED, b"1\r\n \r\n"),
    "trailers": (CHUNKED + b"0\r\n", b"x-a: b\r\n"),
    "body": (HEAD + b"content-length: 100000\r\n\r\n", b" "),
}
"""Where an answer of HTTP may drip: what comes first, and what comes for ever."""


@contextmanager
def dripping(begin: bytes, drop: bytes, pause: float = 0.02) -> Iterator[str]:
    """A server that answers each connection with ``begin``, and then ``drop`` for ever; its URL, without a path."""
    listener = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()
    answering: list[threading.Thread] = []

    def answer(connection: socket.socket) -> None:
        try:
            with connection:
                connection.recv(65536)
                connection.sendall(begin)
                while not over.wait(pause):
                    connection.sendall(drop)
        except OSError:  # the client has left
            return

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # it is over
                return
            answering.append(threading.Thread(target=answer, args=(connection,), daemon=True))
            answering[-1].start()

    serving = threading.Thread(target=serve, daemon=True)
    serving.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        over.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for thread in (serving, *answering):
            thread.join(30)
