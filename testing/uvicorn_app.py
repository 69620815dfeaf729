"""An app as users serve it: a uvicorn process of its own, and a client of it; killed at the end."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from testing.servers import bound, free_port
from testing.waiting import wait_until


@contextmanager
def served_by_uvicorn(app: str, folder: Path, *, ready: str, **environment: str) -> Iterator[httpx.Client]:
    """Serve ``app`` (``module:name``) in ``folder``; it is there once ``ready`` is answered with less than 500.

    A process that ends before that fails the test, with what it has written.
    """
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", app, "--port", str(port), "--log-level", "warning"]
    process = subprocess.Popen(
        bound(*command), cwd=folder, env=os.environ | environment, stderr=subprocess.PIPE, text=True
    )

    def serves() -> bool:
        assert process.poll() is None, process.stderr and process.stderr.read()
        try:
            return client.get(ready).status_code < 500
        except httpx.TransportError:
            return False

    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False, verify=False) as client:
            wait_until(serves, "the app serves")
            yield client
    finally:
        process.kill()
        process.communicate()
