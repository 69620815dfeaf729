"""Real PostgreSQL servers for tests: on free loopback ports, to be killed, paused and started again."""

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any

import psycopg

from oncegate.cache.sql.postgresql import statements
from testing.fetching import fetched
from testing.servers import Server

_ENDS_WITHIN = 20.0
_NOBODY = 65534
_CONFIGURATION = """
fsync = off  # what is committed survives a kill of the server, and nobody waits for a disk that is busy
full_page_writes = off
jit = off  # needs LLVM
shared_buffers = 16MB
max_connections = 100
max_prepared_transactions = 5
unix_socket_directories = ''
listen_addresses = '127.0.0.1'
timezone = 'UTC'
log_timezone = 'UTC'
"""


class PostgreSQLServer(Server):
    """A PostgreSQL server of our own.

    PostgreSQL refuses root: then it runs as nobody, from a copy where nobody can't read the one that there is.
    """

    def __init__(self) -> None:
        super().__init__("postgresql")
        if os.getuid() == 0:
            os.chown(self._folder, _NOBODY, _NOBODY)
            self._as = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []}
        self._binaries = self._readable(fetched("postgresql"))
        self._numbers = count(1)
        self._initialise()
        with (self._folder / "data/postgresql.conf").open("a") as conf:
            conf.write(_CONFIGURATION)

    def _initialise(self) -> None:
        """As initdb does it, of whose work this process keeps a copy: that takes a fifth of the time."""
        kept = _kept()
        if not (kept / "data").exists():
            self._run("initdb", "-D", "data", "-N", "-A", "trust", "-U", "postgres", "--locale=C", "-E", "UTF8")
            _copy(self._folder / "data", kept / "new")
            (kept / "new").rename(kept / "data")
        else:
            _copy(kept / "data", self._folder / "data")

    def _readable(self, binaries: str) -> Path:
        try:
            subprocess.run([f"{binaries}/initdb", "--version"], cwd="/", capture_output=True, check=True, **self._as)
        except (OSError, subprocess.CalledProcessError):
            shutil.copytree(Path(binaries).parent, self._folder / "server", symlinks=True)
            return self._folder / "server/bin"
        return Path(binaries)

    @property
    def folder(self) -> Path:
        """Where it lives: its files are in ``data``."""
        return self._folder

    def _run(self, name: str, *arguments: str) -> None:
        command = [str(self._binaries / name), *arguments]
        done = subprocess.run(command, cwd=self._folder, capture_output=True, text=True, **self._as)
        if done.returncode:
            raise RuntimeError(f"{name} failed: {done.stderr}")

    def _command(self) -> list[str | Path]:
        return [self._binaries / "postgres", "-D", "data", "-p", str(self.port)]

    def _answers(self) -> bool:
        with suppress(psycopg.OperationalError):
            self.execute("SELECT 1")
            return True
        return False

    def _end(self, process: "subprocess.Popen[bytes]") -> None:
        """End it at once, as a crash does, and wait until its processes are gone. What was committed stays."""
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGQUIT)  # its own processes are no group: it ends them, and then itself
        try:
            process.wait(_ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def pause(self) -> None:
        """Let it hang with all of its processes: connections stay, nothing is answered."""
        super().pause()
        for child in self._processes():
            os.kill(child, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on from `pause`."""
        for child in self._processes():
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGCONT)
        super().resume()

    def _processes(self) -> list[int]:
        return [int(child) for child in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

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


@lru_cache
def _kept() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="oncegate-initdb-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _copy(source: Path, target: Path) -> None:
    """With its owner, and without the 16 MB of zeros in it."""
    subprocess.run(["cp", "-a", "--sparse=always", source, target], check=True)


class RecordsServer:
    """A PostgreSQL server with a table of records; ``url`` is for caches."""

    def __init__(self, server: PostgreSQLServer) -> None:
        self.server = server
        self.database = server.database()
        server.execute(statements.TABLES, self.database)
        self.url = f"postgresql://postgres@127.0.0.1:{server.port}/{self.database}"
        self.start, self.stop = server.start, server.stop
        self.pause, self.resume = server.pause, server.resume


@contextmanager
def records_server() -> Iterator[RecordsServer]:
    """One for the length of a ``with``."""
    with PostgreSQLServer() as server:
        yield RecordsServer(server)
