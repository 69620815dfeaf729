"""The same calls on both builds, each in a process that lasts as long as the tests, and what differs."""

import atexit
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import oncegate

ROOT = Path(__file__).resolve().parents[2]
Calls = Sequence[tuple[str, tuple[Any, ...]]]


class Driver:
    """The build of ``site``, or the source without one, in a process (`tests.builds.driver`)."""

    def __init__(self, site: str | None) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment |= {"PYTHONHASHSEED": "0"} | ({"PYTHONPATH": site} if site else {})
        command = [sys.executable, "-m", "tests.builds.driver"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe)
        atexit.register(self._process.communicate)

    def send(self, module: str, calls: Calls) -> None:
        assert self._process.stdin
        pickle.dump((module, list(calls)), self._process.stdin)
        self._process.stdin.flush()

    def outcomes(self) -> list[str]:
        """The file of the build, and what came of each call."""
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, "the build has ended"
        outcomes: list[str] = json.loads(line)
        return outcomes


@lru_cache
def drivers() -> tuple[Driver, Driver]:
    """From source, and compiled."""
    return Driver(None), Driver(str(Path(str(oncegate.__file__)).parents[1]))


def differing(module: str, calls: Calls) -> list[tuple[Any, str, str]]:
    """The calls of functions in ``tests.builds.<module>`` that end otherwise compiled: each with both ends, source first."""
    for driver in drivers():
        driver.send(module, calls)
    (source, *of_source), (compiled, *of_compiled) = [driver.outcomes() for driver in drivers()]
    assert source.endswith(".py")
    assert compiled.endswith(".so")
    assert len(set(of_source)) > 3, "whatever was called, few things came of it: the calls are too much alike"
    both = zip(calls, of_source, of_compiled, strict=True)
    return [(call, one, other) for call, one, other in both if one != other]


def same(module: str, calls: Calls) -> None:
    """Fails with the first few calls that end otherwise compiled."""
    found = differing(module, calls)
    shown = "\n".join(
        f"{call!r:.1500}\n  source:   {one:.1500}\n  compiled: {other:.1500}" for call, one, other in found[:3]
    )
    assert not found, f"{len(found)} of {len(calls)} calls differ\n{shown}"
