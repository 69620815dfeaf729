"""Real PostgreSQL servers for tests: on free loopback ports, to be killed, paused and started again."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg

from testing.servers import READY_WITHIN, free_port

SCRIPT = Path(__file__).parent.parent / "scripts/postgresql"
"""Prints where `postgres` is, fetched where there is none."""
_ENDS_WITHIN = 20.0
_NOBODY = 65534
_CONFIGURATION = """
fsync = off  # what is committed survives a kill of the server, and nobody waits for a disk that is busy
full_page_writes = off
jit = off  # needs LLVM
shared_buffers = 16MB
max_connections = 100
unix_socket_directories = ''
listen_addresses = '127.0.0.1'
timezone = 'UTC'
log_timezone = 'UTC'
"""


class PostgreSQLServer:
    """A PostgreSQL server of our own, in a folder of its own. Started on entry, stopped and cleared away on exit.

    PostgreSQL refuses root: then it runs as nobody, from a copy where nobody can't read the one that there is.
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="oncegate-postgresql-"))
        self._as: dict[str, Any] = {}
        if os.getuid() == 0:
            os.chown(self._folder, _NOBODY, _NOBODY)
            self._as = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []}
        self._binaries = self._readable(subprocess.check_output([SCRIPT], text=True).strip())
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = count(1)
        self.port = free_port()
        self._run("initdb", "-D", "data", "-N", "-A", "trust", "-U", "postgres", "--locale=C", "-E", "UTF8")
        with (self._folder / "data/postgresql.conf").open("a") as conf:
            conf.write(_CONFIGURATION)

    def _readable(self, binaries: str) -> Path:
        try:
            subprocess.run([f"{binaries}/initdb", "--version"], cwd="/", capture_output=True, check=True, **self._as)
        except (OSError, subprocess.CalledProcessError):
            shutil.copytree(Path(binaries).parent, self._folder / "server", symlinks=True)
            return self._folder / "server/bin"
        return Path(binaries)

    def _run(self, name: str, *arguments: str) -> None:
        command = [str(self._binaries / name), *arguments]
        done = subprocess.run(command, cwd=self._folder, capture_output=True, text=True, **self._as)
        if done.returncode:
            raise RuntimeError(f"{name} failed: {done.stderr}")

    def start(self) -> None:
        """Start it and wait until it answers. Raises ``RuntimeError`` with its last words if it does not."""
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._binaries / "postgres", "-D", "data", "-p", str(self.port)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                start_new_session=True,
                **self._as,
            )
        until = time.monotonic() + READY_WITHIN
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until:
                self.stop()
                last = (self._folder / "log").read_text(errors="replace").splitlines()[-3:]
                raise RuntimeError(f"postgres does not start: {last}")
            time.sleep(0.02)

    def _answers(self) -> bool:
        with suppress(psycopg.OperationalError):
            self.execute("SELECT 1")
            return True
        return False

    @property
    def pid(self) -> int:
        """Of the process whose children serve the connections. Raises ``RuntimeError`` where it is stopped."""
        if self._process is None:
            raise RuntimeError("postgres is stopped")
        return self._process.pid

    def stop(self) -> None:
        """End it at once, as a crash does, and wait until its processes are gone. What was committed stays."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGQUIT)  # its own processes are no group: it ends them, and then itself
        try:
            process.wait(_ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """The rows of one statement, executed and committed on a connection apart from those of the code under test."""
        address = f"host=127.0.0.1 port={self.port} user=postgres dbname={database} connect_timeout=5"
        with psycopg.connect(address, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def database(self) -> str:
        """The name of a new database, which nobody else uses."""
        name = f"test_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name}")
        return name

    def url(self, database: str, driver: str) -> str:
        """For SQLAlchemy; ``driver`` is ``asyncpg`` or ``psycopg``."""
        return f"postgresql+{driver}://postgres@127.0.0.1:{self.port}/{database}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
