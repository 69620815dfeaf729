"""The same calls on both builds, each in a process of its own, and what differs."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import oncegate

ROOT = Path(__file__).resolve().parents[2]
Calls = Sequence[tuple[str, tuple[Any, ...]]]


def _start(module: str, site: str | None) -> "subprocess.Popen[bytes]":
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["PYTHONHASHSEED"] = "0"
    if site is not None:
        environment["PYTHONPATH"] = site
    command = [sys.executable, "-m", "tests.builds.driver", module]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def differing(module: str, calls: Calls) -> list[tuple[Any, str, str]]:
    """The calls of functions in ``tests.builds.<module>`` that end otherwise compiled: each with both ends, source first."""
    given = pickle.dumps(list(calls))
    site = str(Path(str(oncegate.__file__)).parents[1])
    processes = [_start(module, None), _start(module, site)]
    outputs = []
    for process in processes:
        output, _ = process.communicate(given, timeout=100)
        assert process.returncode == 0
        outputs.append(json.loads(output))
    (source, *told), (compiled, *told_compiled) = outputs
    assert source.endswith(".py")
    assert compiled.endswith(".so")
    assert len(told) == len(told_compiled) == len(calls)
    assert len(set(told)) > 3, "whatever was asked, few things came of it: it was not asked well"
    both = zip(calls, told, told_compiled, strict=True)
    return [(call, one, other) for call, one, other in both if one != other]


def same(module: str, calls: Calls) -> None:
    """Fails with the first few calls that end otherwise compiled."""
    found = differing(module, calls)
    shown = "\n".join(
        f"{call!r:.1500}\n  source:   {one:.1500}\n  compiled: {other:.1500}" for call, one, other in found[:3]
    )
    assert not found, f"{len(found)} of {len(calls)} calls differ\n{shown}"
