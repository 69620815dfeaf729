"""Servers that run apps on trio are refused at the start, in a line that says what to do."""

import subprocess
import sys
from pathlib import Path

APP = """
from oncegate import IdempotencyMiddleware, MemoryCache

async def app(scope, receive, send):
    raise AssertionError("not reached")

app = IdempotencyMiddleware(app, cache=MemoryCache())
"""


def test_hypercorn_s_trio_worker_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    command = [sys.executable, "-m", "hypercorn", "--worker-class", "trio", "--bind", "127.0.0.1:0", "shop:app"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert "IdempotencyMiddleware needs asyncio: use a server's asyncio worker (hypercorn -k asyncio)" in done.stderr
