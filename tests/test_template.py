"""A process that the template has forked is what a started one is, in all that a program and a test can see of it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testing.template import Forked

PROBE = """
import asyncio, atexit, gc, json, logging, os, random, signal, sys, threading, warnings

atexit.register(lambda: print("ended in an orderly way", file=sys.stderr))
numbers = [number for number in signal.valid_signals() if number not in (signal.SIGKILL, signal.SIGSTOP)]
print(json.dumps({
    "arguments": sys.argv,
    "environment": dict(os.environ),
    "folder": os.getcwd(),
    "path": sys.path,
    "name": __name__,
    "parent": os.getppid(),
    "leads a session": os.getsid(0) == os.getpid(),
    "its session": os.getsid(os.getppid()),
    "open files": sorted(os.listdir("/proc/self/fd")),
    "threads": threading.active_count(),
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "handlers": [str(signal.getsignal(number)) for number in numbers],
    "warnings": str(warnings.filters),
    "collector": [gc.isenabled(), gc.get_threshold(), gc.get_debug()],
    "logging": [logging.root.level, str(logging.root.handlers), logging.raiseExceptions],
    "loop": asyncio._get_running_loop(),
    "policy": type(asyncio.get_event_loop_policy()).__name__,
    "limits": __import__("resource").getrlimit(__import__("resource").RLIMIT_NOFILE),
    "umask": os.umask(0o22),
    "read": sys.stdin.read(),
}))
sys.exit(int(sys.argv[1]))
"""


def started(*arguments: str, **options: Any) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, *arguments], **options)


@pytest.fixture
def ignored() -> Iterator[None]:
    """A signal that whoever starts it ignores, as `nohup` does."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("ignored")
@pytest.mark.parametrize("session", [False, True])
def test_it_differs_in_nothing_from_a_process_that_was_started(session: bool, tmp_path: Path) -> None:
    """But in what its collector looks at: not at what the template had imported."""
    pipe = subprocess.PIPE
    environment = {**os.environ, "ONCEGATE_NAMESPACE": "böcklin", "ONLY": "HERE"}
    environment.pop("HOME", None)
    ends = []
    for start in (started, Forked):
        process = start(
            "-c", PROBE, "3", "two words",
            stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=tmp_path, env=environment, start_new_session=session,
        )  # fmt: skip
        with process:
            printed, complained = process.communicate("a line")
        assert (complained, process.returncode) == ("ended in an orderly way\n", 3)
        ends.append(json.loads(printed))
    assert ends[0] == ends[1]
    assert ends[0]["read"] == "a line"


def test_a_module_runs_as_it_does_where_it_was_started(tmp_path: Path) -> None:
    (tmp_path / "by_name.py").write_text("import sys\nprint(sys.argv, sys.path[0], __name__, __spec__.name)\n")
    printed = [
        start("-m", "by_name", "x", stdout=subprocess.PIPE, text=True, cwd=tmp_path).communicate()[0]
        for start in (started, Forked)
    ]
    assert printed[0] == printed[1]
    assert "by_name" in printed[0]


def test_it_is_a_child_that_can_be_killed_and_waited_for() -> None:
    with Forked("-c", "print('up', flush=True); __import__('signal').pause()", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        assert process.poll() is None
        process.kill()
        assert process.wait(60) == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_an_error_that_nobody_catches_ends_it_as_python_does() -> None:
    with Forked("-c", "1 / 0", stderr=subprocess.PIPE, text=True) as process:
        written = process.communicate()[1]
    assert process.returncode == 1
    assert written.endswith("ZeroDivisionError: division by zero\n")


def test_each_has_chances_of_its_own() -> None:
    program = "import random, uuid; print(random.random(), uuid.uuid4())"
    with Forked("-c", program, stdout=subprocess.PIPE) as one, Forked("-c", program, stdout=subprocess.PIPE) as other:
        drawn = [*one.communicate()[0].split(), *other.communicate()[0].split()]
    assert len(set(drawn)) == 4


def test_orphans_below_a_test_are_not_its_children() -> None:
    """They would stay as zombies, and tests that wait for one's end would wait for ever."""
    program = "import os, time; pid = os.fork(); print(pid, flush=True) if pid else time.sleep(600)"
    with Forked("-c", program, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        orphan = int(process.stdout.readline())
        process.wait(60)
    try:
        assert Path(f"/proc/{orphan}/stat").read_text().rpartition(")")[2].split()[1] != str(os.getpid())
    finally:
        os.kill(orphan, signal.SIGKILL)


def test_with_other_variables_for_python_one_is_started_after_all(tmp_path: Path) -> None:
    (tmp_path / "only_here.py").write_text("where = __file__")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    with Forked("-c", "import only_here; print(only_here.where)", stdout=subprocess.PIPE, env=environment) as process:
        assert process.communicate()[0].decode().strip() == str(tmp_path / "only_here.py")
