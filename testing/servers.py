"""Real Redis servers for tests: on free loopback ports, Unix sockets or TLS, to be stopped, paused and started again."""

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis
import trustme

READY_WITHIN = 60.0
"""Seconds for a server to answer; generous, since a busy machine starts processes slowly."""


PORTS = range(10_000, 30_000)
"""Below those that Linux gives to connections and to whoever asks for any: nobody gets one of these by chance."""
_BLOCK = 2000


def _ports() -> Iterator[int]:
    """Those of this process in turn. Tests that run beside each other (pytest-xdist) have blocks of their own."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    block = PORTS[worker * _BLOCK % len(PORTS) :][:_BLOCK]
    start = random.randrange(_BLOCK)  # another run may be under way
    return cycle([*block[start:], *block[:start]])


_own_ports = _ports()


def free_port() -> int:
    """A loopback port that nothing listens on, and that nothing else takes before the test does, or at all if it doesn't."""
    for port in islice(_own_ports, _BLOCK):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError(f"no port is free of {_BLOCK}")


class RedisServer:
    """A redis-server of our own. ``url`` is for clients (`RedisCache.from_url`), `command` for looking behind their backs.

    ``kind`` is ``tcp``, ``unix``, ``tls``, or ``sentinel`` (a Sentinel that knows no service yet: testing/groups.py).
    ``authority`` signs its certificate; with one, a Sentinel speaks TLS too. ``persist`` keeps data over `stop` and `start`
    (an append-only file). ``config`` are directives of redis.conf. A context manager: started on entry, stopped and
    cleared away on exit.
    """

    def __init__(
        self,
        kind: str = "tcp",
        *,
        persist: bool = False,
        config: dict[str, str] | None = None,
        authority: trustme.CA | None = None,
    ) -> None:
        binary = shutil.which("redis-server")
        if binary is None:
            raise RuntimeError("these tests need redis-server 7 or newer on the PATH (apt install redis-server)")
        self._binary = binary
        self._kind = kind
        self._directory = Path(tempfile.mkdtemp(prefix="oncegate-redis-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._clients: list[redis.Redis] = []
        self.port = free_port()
        self._config = {
            "dir": str(self._directory),
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
            path = str(self._directory / "redis.sock")
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
        self.ca_path = self._directory / "ca.pem"
        authority.cert_pem.write_to_path(self.ca_path)
        certificate.cert_chain_pems[0].write_to_path(self._directory / "cert.pem")
        certificate.private_key_pem.write_to_path(self._directory / "key.pem")
        self._config |= {
            "port": "0",
            "tls-port": str(self.port),
            "tls-cert-file": str(self._directory / "cert.pem"),
            "tls-key-file": str(self._directory / "key.pem"),
            "tls-ca-cert-file": str(self.ca_path),
            "tls-auth-clients": "no",
        }
        self._options |= {"ssl": True, "ssl_ca_certs": str(self.ca_path)}
        self.url = f"rediss://127.0.0.1:{self.port}/0?ssl_ca_certs={self.ca_path}"

    def start(self) -> None:
        """Start it and wait until it answers. Raises ``RuntimeError`` with the server's last words if it does not."""
        conf = self._directory / "redis.conf"
        conf.write_text("".join(f"{name} {value}\n" for name, value in self._config.items()))
        with (self._directory / "log").open("ab") as log:
            mode = ["--sentinel"] if self._kind == "sentinel" else []
            self._process = subprocess.Popen([self._binary, str(conf), *mode], stdout=log, stderr=log)
        deadline = time.monotonic() + READY_WITHIN
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                last = (self._directory / "log").read_text().splitlines()[-1:]
                raise RuntimeError(f"redis-server does not start: {last}")
            time.sleep(0.01)

    def _answers(self) -> bool:
        password = self._config.get("requirepass")
        with contextlib.closing(redis.Redis(**self._options, password=password, socket_timeout=1)) as client:
            try:
                return bool(client.ping())
            except redis.RedisError:
                return False

    def stop(self) -> None:
        """Kill it, paused or not, and wait until it is gone. What it had persisted stays."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        while self._clients:
            self._clients.pop().close()

    def remove(self) -> None:
        """Stop it and clear away its files."""
        self.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def pause(self) -> None:
        """Let it hang: connections stay, nothing is answered."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on from `pause`."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        if self._process is None:
            raise RuntimeError("the server is not running")
        os.kill(self._process.pid, number)

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
        (self._directory / "dump.rdb").mkdir()
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
        """Collects the commands that clients send meanwhile, without those that scripts issue, and without our own."""
        seen: list[str] = []
        marker = os.urandom(8).hex()
        watcher = self.client()
        with watcher.monitor() as monitor:  # type: ignore[no-untyped-call]  # redis-py does not annotate it
            yield seen
            self.command("ECHO", marker)
            for event in monitor.listen():
                if marker in event["command"]:
                    break
                if event["client_type"] != "lua":
                    seen.append(event["command"])

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()
