"""A memory cache in several workers executes each key once in each of them: said where the library can see it.

Rules of docs/contract.md: R12.36.
"""

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from oncegate.cache.memory.processes import worker_count
from testing.servers import bound, free_port
from testing.template import ROOT
from testing.waiting import wait_until

LINE = "each has a memory cache of its own"
APP = """
from starlette.applications import Starlette
from oncegate import IdempotencyMiddleware, MemoryCache

app = Starlette()
app.add_middleware(IdempotencyMiddleware, cache=MemoryCache())
"""


@pytest.mark.parametrize(
    ("line", "environment", "workers"),
    [
        ("/bin/uvicorn app:app --workers 3", {}, 3),
        ("/bin/uvicorn app:app --workers=3", {}, 3),
        ("/bin/uvicorn app:app", {"WEB_CONCURRENCY": "4"}, 4),
        ("/bin/uvicorn app:app --workers 1", {"WEB_CONCURRENCY": "4"}, 1),
        ("/site-packages/uvicorn/__main__.py app:app --workers 2", {}, 2),
        ("/bin/gunicorn -w 4 app:app", {}, 4),
        ("/bin/gunicorn -w4 app:app", {}, 4),
        ("/bin/hypercorn app:app -w 2", {}, 2),
        ("/bin/fastapi run app.py --workers 5", {}, 5),
        ("/bin/uvicorn app:app --reload", {}, 1),
        ("/bin/uvicorn app:app --workers many", {}, 1),
        ("/bin/pytest -n 4", {"WEB_CONCURRENCY": "4"}, 1),
        ("-c", {}, 1),
    ],
)
def test_the_servers_command_lines_are_understood(line: str, environment: dict[str, str], workers: int) -> None:
    assert worker_count(line.split(), environment) == workers


@pytest.mark.parametrize("workers", [1, 3])
def test_each_worker_warns_once(tmp_path: Path, workers: int) -> None:
    (tmp_path / "served.py").write_text(APP)
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "served:app", "--port", str(port), "--workers", str(workers)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(bound(*command), cwd=tmp_path, env=environment, stderr=out, stdout=out)

    def warned() -> bool:
        try:
            httpx.get(f"http://127.0.0.1:{port}/", timeout=60, trust_env=False, verify=False)
        except httpx.TransportError:
            return False
        return log.read_text().count(LINE) == (workers if workers > 1 else 0)

    try:
        wait_until(warned, "each worker that has served a request has warned")
    finally:
        process.terminate()
        process.wait()
