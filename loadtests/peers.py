"""The middlewares that oncegate is measured beside: installed together, into an environment of their own under .cache."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from loadtests.processes import ROOT, BenchError

PEERS = {"idemkit": "1.0.2", "asgi-idempotency-header": "0.2.0"}
SHARED = ("fastapi", "starlette", "pydantic", "uvicorn", "uvloop", "httptools", "redis", "hiredis")
"""What all of them stand on, in the versions that are installed here, so that nothing but the middleware differs."""


def python() -> Path:
    """The Python of that environment, made where it is missing or of other versions. Raises `BenchError`."""
    home = ROOT / ".cache" / "peers"
    wanted = [f"{name}=={version(name)}" for name in SHARED] + [f"{name}=={number}" for name, number in PEERS.items()]
    text = "\n".join([*wanted, str(ROOT), (ROOT / "pyproject.toml").read_text()])
    stamp = home / "stamp"
    found = home / "bin" / "python"
    if stamp.exists() and stamp.read_text() == text:
        return found
    steps = (
        [sys.executable, "-m", "venv", "--clear", str(home)],
        [
            str(found),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--editable",
            str(ROOT),
            *wanted,
        ],
    )
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True)
        if done.returncode:
            last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
            raise BenchError(f"the other middlewares can't be installed: {last[0] if last else step[0]}")
    stamp.write_text(text)
    return found


def versions() -> dict[str, str]:
    """What is measured, by name."""
    return {**PEERS, **{name: version(name) for name in SHARED}, "oncegate": version("oncegate")}
