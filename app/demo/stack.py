"""The processes of the demo: the payments service, the gateway in front of it, and a Redis for its records where there is one.

Records outlast the gateway's process: they are in a Redis that writes each command to its file, or in a file of SQLite.
"""

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from oncegate.app.demo.service import LISTENING
from oncegate.app.demo.supervised import Following, Supervised
from oncegate.app.server.accept import bind
from oncegate.app.settings.admin_tokens import new_token

HOST = "127.0.0.1"
FIRST_PORT = 8080
PORTS_TO_TRY = 100
GATEWAY, PAYMENTS, REDIS = "gateway", "payments service", "Redis"
OLDEST_REDIS = 7
MOST_OF_A_PATH = 70
"""Bytes of the temporary folder's path, to which the demo adds about thirty."""
_RUN_GATEWAY = "from oncegate.app.cli.main import main; main()"
# Lives until the demo has ended, however that did: then its standard input is closed.
_GUARD = 'read -r _; rm -rf -- "$1"; kill -KILL 0'
_CONFIGURATION = """\
upstream = "{upstream}"
cache = "{cache}"
namespace = "demo"
public = ["metrics", "policy", "docs"]
log_level = "debug"     # a line for each request: the terminal shows them
log_format = "json"
shutdown_timeout = 10

[idempotency]
lease = {lease}
"""
LEASE = 5
"""Seconds. Who presses a button waits for as long until an attempt whose gateway died reads unknown."""


class Stack:
    """The processes, in one process group and with one folder, of which nothing is left when this process has ended.

    ``port``: the gateway's (``None``: `FIRST_PORT`, or the next free one). ``redis_server``: a program to keep records by;
    ``None``: they are kept in a file of SQLite.
    """

    def __init__(self, port: int | None, redis_server: str | None, following: Following) -> None:
        self.token = new_token()
        self.redis: Supervised | None = None
        self._port = _free_port() if port is None else port
        self._following = following
        self._folder = Path(tempfile.mkdtemp(prefix="oncegate-demo-", dir=_short(tempfile.gettempdir())))
        self._guard: Process | None = None
        if redis_server is not None:
            self.redis = self._process(REDIS, r"(?i)ready to accept connections", self._redis_command(redis_server))
        listening = rf"{LISTENING}(?P<url>http://[\d.:]+)"
        self.payments = self._process(PAYMENTS, listening, self._payments_command)
        self.gateway = self._process(GATEWAY, listening, self._gateway_command)

    async def start(self) -> None:
        """Returns once all are up. Raises `oncegate.app.demo.supervised.NotStarted`."""
        guard = ("sh", "-c", _GUARD, "sh", str(self._folder))
        self._guard = await asyncio.create_subprocess_exec(
            *guard, stdin=PIPE, stdout=DEVNULL, stderr=DEVNULL, process_group=0
        )
        for process in self.processes:
            await process.start(self._guard.pid)

    async def stop(self) -> None:
        """End all, and remove what they have kept."""
        for process in reversed(self.processes):
            await process.stop()
        if self._guard is None or self._guard.stdin is None:
            shutil.rmtree(self._folder)
        else:
            self._guard.stdin.close()
            await self._guard.wait()

    @property
    def processes(self) -> list[Supervised]:
        """In the order in which they are started."""
        return [each for each in (self.redis, self.payments, self.gateway) if each is not None]

    def _process(self, name: str, ready: str, command: Callable[[], Sequence[str]]) -> Supervised:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ONCEGATE_")}
        environment |= {"ONCEGATE_ADMIN_TOKEN": self.token, "RUNTIME_DIRECTORY": str(self._folder)}
        return Supervised(name, command, re.compile(ready), self._following, environment)

    def _redis_command(self, program: str) -> Callable[[], Sequence[str]]:
        kept = ("--dir", str(self._folder), "--save", "", "--appendonly", "yes", "--appendfsync", "always")
        return lambda: (program, "--port", "0", "--unixsocket", str(self._folder / "redis.socket"), *kept)

    def _payments_command(self) -> Sequence[str]:
        port = urlsplit(self.payments.address).port or 0  # of the first start: the gateway knows it
        return sys.executable, "-m", "oncegate.app.demo.service", str(port), str(self._folder / "books")

    def _gateway_command(self) -> Sequence[str]:
        file = self._folder / "demo.toml"
        cache = f"unix://{self._folder}/redis.socket" if self.redis else f"sqlite:///{self._folder}/records.db"
        file.write_text(_CONFIGURATION.format(upstream=self.payments.address, cache=cache, lease=LEASE))
        port = urlsplit(self.gateway.address).port or self._port
        return sys.executable, "-c", _RUN_GATEWAY, "serve", "--config", str(file), "--port", str(port)


def _short(folder: str) -> str:
    """Where sockets can be: their paths have 104 bytes at the most, on some systems."""
    return folder if len(os.fsencode(folder)) < MOST_OF_A_PATH else "/tmp"  # noqa: S108  # the folder in it is one's own


def find_redis() -> str | None:
    """A redis-server on the PATH that is new enough to keep records; ``None`` without one."""
    program = shutil.which("redis-server")
    if program is None:
        return None
    try:
        shown = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10).stdout  # noqa: S603  # the user's own
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = re.search(r"v=(\d+)\.", shown)
    return program if version is not None and int(version[1]) >= OLDEST_REDIS else None


def _free_port() -> int:
    for port in range(FIRST_PORT, FIRST_PORT + PORTS_TO_TRY):
        try:
            sockets = bind(HOST, port)
        except OSError:
            continue
        for bound in sockets:
            bound.close()
        return port
    return 0
