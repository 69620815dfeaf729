"""The processes of a benchmark: each pinned to a core, on a loopback port of its own, and ended with the benchmark."""

import contextlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Self

import redis

from loadtests import machine
from testing.fetching import NotFetchedError, fetched

HERE = Path(__file__).parent
ROOT = HERE.parent
READY_WITHIN = 30.0
ENDS_WITHIN = 15.0
BODY = (
    '{"id":"pay_0123456789","object":"payment","amount":1999,"currency":"EUR","status":"succeeded",'
    '"created":"2026-11-21T17:00:00Z","customer":"cus_0123456789","description":"Order 4711, three items",'
    '"metadata":{"order":"4711","channel":"web","note":"as long as answers to commands are: 300 bytes in it"}}'
)
"""What the upstream answers: 300 bytes."""


class BenchError(Exception):
    """A benchmark can't be run, or a server under test gave a wrong answer. The text is one line."""


PATIENCE = 10.0
"""Seconds for Redis in a run whose figures say nothing: there a machine that stands still is to lead to no 503."""
_ports = iter(random.sample(range(30_000, 32_000), 2000))


def free_port() -> int:
    """A loopback port that nothing listens on. None that Linux gives to connections: they could take it first.

    Nor does another bench that runs at the same time: the port's name as an abstract socket is ours until this process ends.
    """
    for port in _ports:
        ours = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError), socket.socket() as probe:
            ours.bind(f"\0oncegate-bench-{port}")
            probe.bind(("127.0.0.1", port))
            ours.detach()  # left open
            return port
        ours.close()
    raise BenchError("no port is free")


@contextlib.contextmanager
def _signals_later() -> Iterator[None]:
    """Nothing ends a process that was begun, but isn't known yet: what tells us to stop meanwhile is heeded behind it."""
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda signum, _: came.append(signum))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for signum in came:
            signal.raise_signal(signum)


class Process:
    """A server under way. A context manager: started and listening on entry, ended on exit. ``log`` keeps what it says.

    ``core`` is the core that it may use, or a list of them (``0,1``).
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        port: int,
        core: int | str,
        folder: Path,
        environment: Mapping[str, str] = {},
        ready_within: float = READY_WITHIN,
        working_folder: Path | None = None,
    ) -> None:
        self.name = name
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.log = folder / f"{name}.log"
        self._command = ["taskset", "--cpu-list", str(core), *command]
        # Neither settings of ours nor another build: what is measured is told by what starts it alone.
        self._environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("ONCEGATE_", "PYTHONPATH"))
        }
        self._environment |= environment
        self._ready_within = ready_within
        self._working_folder = working_folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Its process id; taskset has become the server."""
        if self._process is None:
            raise BenchError(f"{self.name} is not running")
        return self._process.pid

    def cpu_seconds(self) -> float:
        """What it has used so far, its workers included."""
        return machine.cpu_seconds(self.pid)

    def start(self) -> None:
        """Start it, without waiting."""
        with self.log.open("ab") as log, _signals_later():
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                cwd=self._working_folder,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        try:
            if self._process is None:
                self.start()
            self._wait()
        except BaseException:  # a signal, too: what has begun to start is ended
            self.__exit__()
            raise
        return self

    def _wait(self) -> None:
        until = time.monotonic() + self._ready_within
        while not self._listens():
            if self._process is None or self._process.poll() is not None or time.monotonic() > until:
                raise BenchError(f"{self.name} does not start: {self.last_words()}")
            time.sleep(0.02)

    def last_words(self) -> str:
        """The last line of its log."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it says nothing"

    def _listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False

    def __exit__(self, *_: object) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def run_whole(command: Sequence[str | Path]) -> subprocess.CompletedProcess[str]:
    """Run something that starts others, and take what it prints. Told to stop meanwhile, all of it is ended."""
    with contextlib.ExitStack() as stack:
        with _signals_later():
            process = stack.enter_context(
                subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
            )
            stack.callback(_end_group, process)
        printed, _ = process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, printed)


def _end_group(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)


def redis_server(folder: Path, core: int | str) -> Process:
    """A redis-server without persistence: what is measured is not the disk."""
    binary = shutil.which("redis-server")
    if binary is None:
        raise BenchError("redis-server is not on the PATH: run scripts/bench, which brings one")
    port = free_port()
    command = [binary, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    return Process("redis", command, port=port, core=core, folder=folder)


@contextlib.contextmanager
def redis_client(server: Process) -> Iterator[redis.Redis]:
    """A plain client of ``server``."""
    with contextlib.closing(redis.Redis(port=server.port)) as client:
        yield client


def oncegate(
    upstream: str,
    cache: str,
    *,
    core: int | str,
    folder: Path,
    name: str = "oncegate",
    build: Path | None = None,
    environment: Path | None = None,
    workers: int = 1,
    patient: bool = False,
    **settings: str,
) -> Process:
    """The gateway as anybody starts it: no setting but where things are, unless ``settings`` (environment) says otherwise.

    ``build`` is the folder of the compiled one; without it, it runs as it is installed in ``environment``: by default in that of
    the bench, from source. A ``patient`` one waits `PATIENCE` for Redis.
    """
    port = free_port()
    binary = (environment / "bin" if environment else Path(sys.executable).parent) / "oncegate"
    command = [
        str(binary),
        "serve",
        "--upstream",
        upstream,
        "--cache",
        cache,
        "--port",
        str(port),
        "--workers",
        str(workers),
    ]
    variables = {f"ONCEGATE_{setting.upper()}": value for setting, value in settings.items()}
    if patient:
        variables["ONCEGATE_CACHE_TIMEOUT"] = f"{PATIENCE:g}"
    if build is not None:
        variables["PYTHONPATH"] = str(build)
    return Process(name, command, port=port, core=core, folder=folder, environment=variables)


def nginx(template: str, *, core: int | str, folder: Path, **words: object) -> Process:
    """An nginx on ``template`` (a file beside this one). ``words`` fill its @WORDS@; the first is the port to await."""
    home = tool("nginx")
    values = {"NGINX": home, "FOLDER": folder, "HERE": HERE, "SCRIPTS": ROOT / "cache/redis/lua", "BODY": BODY}
    values |= {name.upper(): value for name, value in words.items()}
    text = re.sub(r"@([A-Z_]+)@", lambda word: str(values[word[1]]), (HERE / template).read_text())
    name = template.partition(".")[0]
    path = folder / template
    path.write_text(text)
    command = [f"{home}/bin/nginx", "-p", str(folder), "-c", str(path)]
    port = next(value for value in words.values() if isinstance(value, int))
    return Process(name, command, port=port, core=core, folder=folder)


def nginx_version() -> str:
    """The version of the nginx that is measured."""
    printed = subprocess.run([f"{tool('nginx')}/bin/nginx", "-v"], capture_output=True, text=True).stderr
    return printed.strip().rpartition("/")[2]


@lru_cache(maxsize=1)
def wrk() -> str:
    """The path of wrk."""
    return tool("wrk")


def tool(name: str) -> str:
    """The folder, or the path, that ``scripts/NAME`` prints. Raises `BenchError` where it can't be had."""
    try:
        return fetched(name)
    except NotFetchedError as error:
        raise BenchError(str(error)) from None
