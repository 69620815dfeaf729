"""`oncegate` as a process: what it writes, where it listens, how it ends."""

import getpass
import logging
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from oncegate.app.cli.main import main
from testing.servers import bound
from testing.template import Forked

ONCEGATE = [str(Path(sys.executable).with_name("oncegate"))]
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("ONCEGATE_")}

OPERATOR = f"{getpass.getuser()}@{socket.gethostname()}"
"""Who the command line says it is, in its audit lines."""
PATIENCE = 60.0
"""Seconds until what is awaited counts as something that never comes: no measure of speed."""


def run(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*ONCEGATE, *arguments], capture_output=True, text=True, env=ENVIRONMENT | environment, timeout=PATIENCE
    )


def invoke(*arguments: str, stdin: str = "", **environment: str) -> "subprocess.CompletedProcess[str]":
    """What `run` does, in this process: for what a command writes and how it ends, without the second that Python takes to start.

    Raises what the command lets through, where a process would end with a traceback.
    """
    unset = {name: None for name in os.environ if name.startswith("ONCEGATE_")}
    root = logging.getLogger()
    handlers = root.handlers[:]
    try:
        done = CliRunner().invoke(main, arguments, stdin, env=unset | ENVIRONMENT | environment, catch_exceptions=False)
    finally:  # a command's own go with it: they write where its output went
        root.handlers[:] = handlers
    return subprocess.CompletedProcess(["oncegate", *arguments], done.exit_code, done.stdout, done.stderr)


def running(*arguments: str, **environment: str) -> AbstractContextManager["Running"]:
    return _until_left(subprocess.Popen(bound(*ONCEGATE, *arguments), **_options(environment)))


def running_command(
    *command: str, pass_fds: Sequence[int] = (), **environment: str
) -> AbstractContextManager["Running"]:
    """As `running`, for any command, which gets the descriptors ``pass_fds``, too."""
    return _until_left(subprocess.Popen(bound(*command), pass_fds=pass_fds, **_options(environment)))


def forked(*arguments: str, before: str = "", **environment: str) -> AbstractContextManager["Running"]:
    """What `running` does, where it is not the command line or the start that a test is about (testing/template.py).

    ``before`` is Python that the process runs first.
    """
    return forked_with((), *arguments, before=before, **environment)


def forked_with(
    passed: Sequence[int], *arguments: str, before: str = "", **environment: str
) -> AbstractContextManager["Running"]:
    """As `forked`, with the descriptors ``passed``, of 100 and above."""
    program = f"{before}\nfrom oncegate.app.cli.main import main; main()"
    return _until_left(Forked("-c", program, *arguments, pass_fds=passed, **_options(environment)))


def _options(environment: dict[str, str]) -> dict[str, Any]:
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return {**streams, "env": ENVIRONMENT | environment, "start_new_session": True}


@contextmanager
def _until_left(process: "subprocess.Popen[str]") -> Iterator["Running"]:
    try:
        yield Running(process)
    finally:
        with suppress(ProcessLookupError):  # its workers with it
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()  # which may have no group of its own yet
        process.communicate()


class Running:
    """A process and its output so far."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.output = ""

    def wait_for(self, pattern: str, times: int = 1) -> "re.Match[str]":
        assert self.process.stdout is not None
        while len(found := list(re.finditer(pattern, self.output))) < times:
            line = self.process.stdout.readline()
            assert line, f"ended without {pattern!r}:\n{self.output}"
            self.output += line
        return found[-1]

    def url(self, workers: int = 1) -> str:
        return self.wait_for(r"listening on (http://[^ ,]+)", workers)[1]

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        self.output += self.process.communicate(timeout=PATIENCE)[0]
        return self.process.returncode
