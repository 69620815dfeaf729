"""What tests run against, fetched by the script of scripts/ that has its name, when a test first needs it."""

import signal
import subprocess
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
WITHIN = 900.0
"""Seconds for a script to end, those included in which another process fetches the same: 115 MB, at the most."""

allowed: frozenset[str] | None = None
"""The only ones that may be asked for, where not all are: the fast part of the suite needs Redis alone."""


class NotFetchedError(RuntimeError):
    """What a test needs is not on this machine, and can't be fetched; says what the script said last."""


@lru_cache
def fetched(name: str) -> str:
    """What ``scripts/NAME`` prints: where it is, fetched where it isn't on this machine.

    Of processes that ask at once, one fetches, and the others wait. Raises `NotFetchedError`.
    """
    if allowed is not None and name not in allowed:
        raise NotFetchedError(f"{name} is no part of the fast tests: see FAST in tests/conftest.py")
    lock = ROOT / ".cache" / f"{name}.lock"
    lock.parent.mkdir(exist_ok=True)
    # The time limit of the test that asks first (pytest-timeout's) stands still: a slow network is no fault of its.
    limit = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        command = ["flock", str(lock), str(ROOT / "scripts" / name)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN)
    finally:
        signal.setitimer(signal.ITIMER_REAL, *limit)
    if done.returncode:
        raise NotFetchedError((done.stderr.strip().splitlines() or [f"scripts/{name} failed"])[-1])
    return done.stdout.strip()
