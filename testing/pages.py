"""Pages as programs: the files that a page shows are written, its servers started, its commands run in one shell.

``python`` and ``toml`` blocks whose first line is a comment with a file's name are files. In an ``sh`` block each line is a
command in a terminal of its own: one that names a port serves there from then on, any other has to end well. A ``console``
block is a transcript: commands after ``$``, and what they print. Ports are exchanged for free ones.

`python -m testing.pages docs/policies.md` writes a page's transcripts anew.
"""

import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from signal import SIGKILL
from typing import Any

from testing.command_line import ENVIRONMENT
from testing.fetching import fetched
from testing.servers import bound, free_port
from testing.wheelhouse import copy_checkout, pack_wheels

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
FILE = re.compile(r"# ([\w.-]+\.(?:py|toml))\n")
PORT = re.compile(r"\b(6379|6380|8000|808\d|9000)\b")
LEASE = re.compile(r"(?:\b|_)lease ?= ?(\d+)", re.I)
MARK = "-- that was all --"
READY_WITHIN = 60.0
ENDS_WITHIN = 60
"""Seconds for a command of curl's that isn't told how long; more than any page waits."""
CHECKOUT = "./oncegate"
"""Where a page has the checkout that it installs from."""


def run(page: Path, once_up: Callable[[dict[str, str]], None] = lambda _: None) -> list[tuple[str, str, str]]:
    """Runs ``page``: each command of its transcripts, what the page shows of it, and what it printed, in their order.

    ``once_up`` is called when the first servers of the page listen, with the ports that they have instead of the page's.
    """
    text = page.read_text("utf-8")
    ports = {port: str(free_port()) for port in sorted(set(PORT.findall(text)))}
    back = {free: port for port, free in ports.items()}
    results: list[tuple[str, str, str]] = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as processes:
        environment = _environment() | _patience(text)
        if CHECKOUT in text:
            environment |= _stranger(Path(folder), ports)
        shell = processes.enter_context(_shell(Path(folder), environment))
        for kind, block in BLOCK.findall(text):
            block = PORT.sub(lambda found: ports[found[0]], block)
            if name := FILE.match(block):
                (Path(folder) / name[1]).write_text(block)
            elif kind == "sh":
                processes.enter_context(_terminals(block.splitlines(), Path(folder), [*back], environment))
                once_up(ports)
                once_up = lambda _: None  # noqa: E731  # once
            elif kind == "console":
                for command, shown in _commands(block):
                    printed = _type(shell, command)
                    results.append((_back(command, back), _back(shown, back), _back(printed, back)))
    return results


def names(page: Path) -> list[str]:
    """The files that ``page`` shows."""
    return [found[1] for _, block in BLOCK.findall(page.read_text("utf-8")) if (found := FILE.match(block))]


def normal(transcript: str) -> str:
    """``transcript`` without what differs from run to run: dates, seconds that pass, names, the end of a killed process."""
    transcript = re.sub(r"(?m)^date: .*$", "date: (a date)", transcript.replace("\r", ""))
    transcript = re.sub(r"(?m)^.*\bKilled\b.*\n?", "", transcript)
    transcript = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", "(a time)", transcript)
    transcript = re.sub(r"\b[\d.]+ s ago\b", "(some) s ago", transcript)
    transcript = re.sub(r"(?m)  [\w.-]+/\d+(?=  | *$)", "  (a gateway)", transcript)
    transcript = re.sub(r"\bon [\w.-]+/\d+-[0-9a-f]{6}\b", "on (a worker)", transcript)
    transcript = re.sub(r"(?m) +$", "", re.sub(r" {2,}", "  ", transcript))  # columns are as wide as what they hold
    transcript = re.sub(r", commit [^,]+,", ", commit (a commit),", transcript)
    transcript = re.sub(r", CPython [\d.]+$", ", CPython (a version)", transcript, flags=re.M)
    transcript = re.sub(r"\bttl=\d+", "ttl=(seconds)", transcript)
    transcript = re.sub(r"(?m)^(oncegate\.audit: .*) by [^ @]+@[^ :]+", r"\1 by (user@host)", transcript)
    transcript = re.sub(r"\b\d{13}-\d+\b", "(a position)", transcript)
    transcript = re.sub(r"\b[0-9a-f]{12}-[0-9a-f]{8}\b", "(a request)", transcript)
    transcript = re.sub(r'"time":"\d{4}[^"]*Z"', '"time":"(a time)"', transcript)
    transcript = re.sub(r'((?:cache_|upstream_)?ms":)[\d.]+', r"\1(some)", transcript)
    transcript = re.sub(r"after \d+ milliseconds with \d+", "after (some) milliseconds with", transcript)
    return re.sub(r'"completed_at":"[^"]*"', '"completed_at":"(a time)"', transcript).strip()


def _commands(block: str) -> list[tuple[str, str]]:
    found = re.findall(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", block, re.M)
    assert found, block
    return list(found)


def _back(text: str, back: dict[str, str]) -> str:
    for free, port in back.items():
        text = re.sub(rf"(?<!\d){free}(?!\d)", port, text)  # no part of a longer number
    return text


def _environment() -> dict[str, str]:
    return ENVIRONMENT | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "LOGNAME": "alice"}


def _patience(text: str) -> dict[str, str]:
    """As much patience with Redis as the shortest lease of the page allows: what is shown is not how slow a machine may be."""
    return {"ONCEGATE_CACHE_TIMEOUT": f"{min([30, *map(int, LEASE.findall(text))]) * 0.33:g}"}


def _stranger(folder: Path, ports: dict[str, str]) -> dict[str, str]:
    """Puts a checkout into ``folder``, its examples with this run's ports, and lets pip do without a network."""
    copy_checkout(folder / "oncegate")
    for example in (folder / "oncegate/docs/deploy").glob("*.toml"):
        example.write_text(PORT.sub(lambda found: ports.get(found[0], found[0]), example.read_text("utf-8")), "utf-8")
    pack_wheels(folder / ".wheels", "oncegate", "setuptools")
    # Compiled is what is imported, when it is.
    own = {"PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_COMPILE": "1"}
    return own | {"PIP_FIND_LINKS": str(folder / ".wheels")}


@contextmanager
def _shell(folder: Path, environment: dict[str, str]) -> Iterator["subprocess.Popen[str]"]:
    """A shell in ``folder``; curl shows no progress in it, as on a terminal that shows a response."""
    fetched("curl")
    shell = subprocess.Popen(
        bound("bash", "--norc"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env=environment,
        start_new_session=True,
    )
    try:
        _type(shell, "curl() { command curl --silent --show-error --max-time " + str(ENDS_WITHIN) + ' "$@"; }')
        yield shell
    finally:
        _end(shell)


def _type(shell: "subprocess.Popen[str]", command: str) -> str:
    assert shell.stdin
    assert shell.stdout
    shell.stdin.write(f"{command}\necho; echo '{MARK}'\n")
    shell.stdin.flush()
    printed = ""
    for line in shell.stdout:
        if line == f"{MARK}\n":
            break
        printed += line
    return printed


@contextmanager
def _terminals(commands: list[str], folder: Path, ports: list[str], environment: dict[str, str]) -> Iterator[None]:
    """Starts what serves on one of ``ports``, waits until all of it listens; anything else is run to its end."""
    started = []
    try:
        for command in commands:
            port = next((word for word in re.findall(r"\d+", command) if word in ports), None)
            if port is None:  # the checkout's own scripts
                subprocess.run(command, shell=True, cwd=ROOT, env=_environment(), check=True, capture_output=True)
                continue
            with (folder / f"{port}.log").open("w") as log:
                process = subprocess.Popen(
                    bound("bash", "-c", command),
                    cwd=folder,
                    env=environment,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            started.append((command, port, process))
        until = time.monotonic() + READY_WITHIN
        for command, port, process in started:
            while not _listens(int(port)):
                log_text = (folder / f"{port}.log").read_text()
                assert process.poll() is None, f"{command}\n{log_text}"
                assert time.monotonic() < until, f"{command}\n{log_text}"
                time.sleep(0.02)
        yield
    finally:
        for _, _, process in started:
            _end(process)


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def _end(process: "subprocess.Popen[Any]") -> None:
    with suppress(ProcessLookupError):  # what it has started with it
        os.killpg(process.pid, SIGKILL)
    process.communicate()


def rewrite(page: Path) -> None:
    """Puts what the commands of ``page`` print now into its transcripts."""
    results = iter(run(page))

    def block(found: "re.Match[str]") -> str:
        if found[1] != "console":
            return found[0]
        made = ""
        for _ in _commands(found[2]):
            command, _, printed = next(results)
            printed = re.sub(r"(?m)^.*\bKilled\b.*\n?", "", printed.replace("\r", "")).strip("\n")
            made += f"$ {command}\n" + printed + "\n" * bool(printed)
        return f"```console\n{made}```"

    page.write_text(BLOCK.sub(block, page.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        rewrite(Path(name))
