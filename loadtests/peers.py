"""The middlewares that oncegate is measured beside: installed together, into an environment of their own under .cache."""

import fcntl
import subprocess
import sys
from importlib.metadata import requires, version
from pathlib import Path

from loadtests.processes import ROOT, BenchError

PEERS = {"idemkit": "1.0.2", "asgi-idempotency-header": "0.2.0"}
SHARED = ("fastapi", "starlette", "pydantic", "uvicorn", "uvloop", "httptools", "redis", "hiredis")
"""What all of them stand on, in the versions that are installed here, so that nothing but the middleware differs."""
SOURCES = ROOT / "src"
MOST_LINES = 6
"""What is told of an installation that failed."""


def python() -> Path:
    """The Python of that environment, made where it is missing or of other versions. Raises `BenchError`.

    oncegate itself is not installed there, but only what it needs: run it with `SOURCES` on the path.
    """
    home = ROOT / ".cache" / "peers"
    home.parent.mkdir(exist_ok=True)
    with (home.parent / "peers.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # whoever measures at the same time waits until it is whole
        _make(home)
    return home / "bin" / "python"


def _make(home: Path) -> None:
    wanted = [f"{name}=={version(name)}" for name in SHARED] + [f"{name}=={number}" for name, number in PEERS.items()]
    wanted += [needed for needed in requires("oncegate") or () if "extra ==" not in needed]
    stamp = home / "stamp"
    text = "\n".join(wanted)
    if stamp.exists() and stamp.read_text() == text:
        return
    # With our own pip: nothing is built, and nothing depends on what a new environment comes with.
    pip = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python")]
    steps = (
        [sys.executable, "-m", "venv", "--clear", "--without-pip", str(home)],
        [*pip, "install", "--quiet", "--disable-pip-version-check", *wanted],
    )
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True)
        if done.returncode:
            last_lines = (done.stderr.strip() or done.stdout.strip() or step[0]).splitlines()[-MOST_LINES:]
            raise BenchError(f"the other middlewares can't be installed: {' | '.join(last_lines)}")
    stamp.write_text(text)


def versions() -> dict[str, str]:
    """What is measured, by name."""
    return {**PEERS, **{name: version(name) for name in SHARED}, "oncegate": version("oncegate")}
