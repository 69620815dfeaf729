"""``python -m oncegate.app.demo.service PORT FILE``: the payments service as a process, which the demo starts and kills.

Its lines on standard output are for the demo: where it listens, what arrived and was booked, which requests it answered.
"""

import socket
import sys
from pathlib import Path

import uvicorn

from oncegate.app.demo.books import Books
from oncegate.app.demo.upstream import Payments, serving_config

LISTENING, PROGRESS, ANSWERED = "listening on ", "progress ", "answered "


def main(port: str, file: str) -> None:
    """Serve on 127.0.0.1:``port`` (0: any free one) until a signal, with the books in ``file``."""
    try:
        bound = socket.create_server(("127.0.0.1", int(port)))
    except OSError as error:
        sys.exit(f"can't listen on 127.0.0.1:{port}: {error.strerror}")
    payments = Payments(
        lambda line: _write(ANSWERED + line), books=Books(Path(file)), progress=lambda event: _write(PROGRESS + event)
    )
    _write(f"{LISTENING}http://127.0.0.1:{bound.getsockname()[1]}")
    uvicorn.Server(serving_config(payments)).run([bound])


def _write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
