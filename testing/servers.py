"""Real servers for tests: processes on free loopback ports, to be stopped, paused and started again; and Redis as one of them."""

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import cycle, islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis
import trustme

from testing.fetching import fetched

READY_WITHIN = 60.0
"""Seconds for a server to answer; generous, since a busy machine starts processes slowly."""


PORTS = range(10_000, 30_000)
"""Below those that Linux gives to connections and to whoever asks for any: nobody gets one of these by chance."""
_BLOCK = 500


@lru_cache
def _own_ports() -> "cycle[int]":
    """Those of this process in turn: a block whose name as an abstract socket is its own until it ends, so that nobody who runs
    tests at the same time has the same.
    """
    for start in random.sample(PORTS[::_BLOCK], len(PORTS) // _BLOCK):
        ours = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError):
            ours.bind(f"\0oncegate-tests-{start}")
            ours.detach()  # left open
            return cycle(range(start, start + _BLOCK))
        ours.close()
    raise RuntimeError("no block of ports is free")


def free_port() -> int:
    """A loopback port that nothing listens on, and that nothing else takes before the test does, or at all if it doesn't."""
    for port in islice(_own_ports(), _BLOCK):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError(f"no port is free of {_BLOCK}")


def bound(*command: str | Path) -> list[str | Path]:
    """``command`` that is killed when this process ends, however it does and whoever holds it: tests are interrupted.

    It holds from when ``setpriv`` has become the command, some milliseconds after its start. Not in a thread: the kernel would
    take that one's end for it.
    """
    is_main = threading.current_thread() is threading.main_thread()
    return [*(("setpriv", "--pdeathsig", "KILL") if is_main else ()), *command]


class Server:
    """A server in a process group and a folder of its own. A context manager: started on entry, stopped and cleared away
    on exit.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._folder = Path(tempfile.mkdtemp(prefix=f"oncegate-{name}-"))
        self._as: dict[str, Any] = {}
        """The user that the process runs as, where it is another one."""
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    @property
    def pid(self) -> int:
        """Of the process that was started. Raises ``RuntimeError`` where it is stopped."""
        if self._process is None:
            raise RuntimeError("the server is not running")
        return self._process.pid

    def _command(self) -> Sequence[str | Path]:
        """What starts it, after its configuration was written."""
        raise NotImplementedError

    def _answers(self) -> bool:
        """Whether it answers as it should once it is up."""
        raise NotImplementedError

    def start(self) -> None:
        """Start it and wait until it answers. Raises ``RuntimeError`` with its last words if it does not."""
        command = self._command()
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                bound(*command),
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
                raise RuntimeError(f"{self._name} does not start: {last}")
            time.sleep(0.01)

    def stop(self) -> None:
        """Kill it with what it has started, paused or not, and wait until it is gone. What it had stored stays."""
        process, self._process = self._process, None
        if process is not None:
            self._end(process)

    def _end(self, process: "subprocess.Popen[bytes]") -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def remove(self) -> None:
        """Stop it and clear away its files."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def pause(self) -> None:
        """Let it hang: connections stay, nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on from `pause`."""
        os.kill(self.pid, signal.SIGCONT)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:  # an interrupt or a test's time limit, too
            self.remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


class FetchedServer(Server):
    """A server that ``script`` of scripts/ prints the folder of, fetched where there is none; ``binary`` is in it."""

    binary: str
    script: str

    def __init__(self) -> None:
        self._binary = str(Path(fetched(self.script)) / self.binary)
        super().__init__(self.script)

    def greeting(self, connection: socket.socket) -> bool:
        """Whether it answers as it should once it is up."""
        raise NotImplementedError

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
            connection.settimeout(2)
            return self.greeting(connection)
        return False


class RedisServer(Server):
    """A redis-server of our own. ``url`` is for clients (`RedisCache.from_url`), `command` for looking behind their backs.

    ``kind`` is ``tcp``, ``unix``, ``tls``, or ``sentinel`` (a Sentinel that knows no service yet: testing/groups.py).
    ``authority`` signs its certificate; with one, a Sentinel speaks TLS too. ``persist`` keeps data over `stop` and `start`
    (an append-only file). ``config`` are directives of redis.conf.
    """

    def __init__(
        self,
        kind: str = "tcp",
        *,
        persist: bool = False,
        config: dict[str, str] | None = None,
        authority: trustme.CA | None = None,
    ) -> None:
        self._binary = str(Path(fetched("redis")) / "redis-server")
        super().__init__("redis")
        self._kind = kind
        self._clients: list[redis.Redis] = []
        self._config = {
            "dir": str(self._folder),
            "bind": "127.0.0.1",
            "port": str(self.port),
            "save": '""',
            "appendonly": "yes" if persist else "no",
            "appendfsync": "no",  # what is written survives a kill, and nobody waits for a disk that is busy
            **(config or {}),
        }
        self._options: dict[str, Any] = {"host": "127.0.0.1", "port": self.port}
        self.url = f"redis://127.0.0.1:{self.port}/0"
        if kind == "unix":
            path = str(self._folder / "redis.sock")
            self._config |= {"port": "0", "unixsocket": path}
            self._options = {"unix_socket_path": path}
            self.url = f"unix://{path}"
        elif kind == "tls":
            self._use_tls(authority or trustme.CA())
        elif kind == "sentinel":
            self._config = {name: self._config[name] for name in ("dir", "bind", "port")} | (config or {})
            if authority is not None:
                self._use_tls(authority)
                self._config["tls-replication"] = "yes"  # to the servers that it watches, too

    def _use_tls(self, authority: trustme.CA) -> None:
        certificate = authority.issue_cert("127.0.0.1")
        self.ca_path = self._folder / "ca.pem"
        authority.cert_pem.write_to_path(self.ca_path)
        certificate.cert_chain_pems[0].write_to_path(self._folder / "cert.pem")
        certificate.private_key_pem.write_to_path(self._folder / "key.pem")
        self._config |= {
            "port": "0",
            "tls-port": str(self.port),
            "tls-cert-file": str(self._folder / "cert.pem"),
            "tls-key-file": str(self._folder / "key.pem"),
            "tls-ca-cert-file": str(self.ca_path),
            "tls-auth-clients": "no",
        }
        self._options |= {"ssl": True, "ssl_ca_certs": str(self.ca_path)}
        self.url = f"rediss://127.0.0.1:{self.port}/0?ssl_ca_certs={self.ca_path}"

    def _command(self) -> list[str]:
        conf = self._folder / "redis.conf"
        conf.write_text("".join(f"{name} {value}\n" for name, value in self._config.items()))
        return [self._binary, str(conf), *(["--sentinel"] if self._kind == "sentinel" else [])]

    def _answers(self) -> bool:
        password = self._config.get("requirepass")
        with contextlib.closing(redis.Redis(**self._options, password=password, socket_timeout=1)) as client:
            try:
                return bool(client.ping())
            except redis.RedisError:
                return False

    def _end(self, process: "subprocess.Popen[bytes]") -> None:
        super()._end(process)
        while self._clients:
            self._clients.pop().close()

    def client(self) -> redis.Redis:
        """A plain client on a connection of its own, closed with the server; ``decode_responses`` is off."""
        password = self._config.get("requirepass")
        client = redis.Redis(**self._options, password=password, single_connection_client=True)
        self._clients.append(client)
        return client

    def command(self, *arguments: str | bytes | int | float) -> Any:
        """Run one command on a connection apart from those of the code under test."""
        if not self._clients:
            self.client()
        return self._clients[0].execute_command(*arguments)  # type: ignore[no-untyped-call]  # redis-py does not annotate it

    def connections(self) -> int:
        """How many clients are connected, our own `command` not counted."""
        ours = max(1, len(self._clients))
        return int(self.command("INFO", "clients")["connected_clients"]) - ours

    def break_saving(self) -> None:
        """Have a background save fail: the file that it would replace is a directory."""
        (self._folder / "dump.rdb").mkdir()
        self.command("BGSAVE")

    def calls(self, name: str) -> int:
        """How often a command has run on this server, those that scripts issue included."""
        statistics = self.command("INFO", "commandstats")
        return int(statistics.get(f"cmdstat_{name}", {}).get("calls", 0))

    def key(self, name: str) -> str:
        """A key that no other test uses on this server."""
        return f"test:{os.urandom(6).hex()}:{name}"

    @contextlib.contextmanager
    def monitored(self) -> Iterator[list[str]]:
        """Collects the commands that clients send meanwhile, without those that scripts issue, and without our own.

        Nor those by which processes keep that they are up: they come when their time is there, whatever else is sent.
        """
        seen: list[str] = []
        marker = os.urandom(8).hex()
        watcher = self.client()
        with watcher.monitor() as monitor:  # type: ignore[no-untyped-call]  # redis-py does not annotate it
            yield seen
            self.command("ECHO", marker)
            for event in monitor.listen():
                if marker in event["command"]:
                    break
                if event["client_type"] != "lua" and ":processes}" not in event["command"]:
                    seen.append(event["command"])
