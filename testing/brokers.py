"""Real brokers for tests: RabbitMQ and NATS with JetStream, on free loopback ports, ended by their process group."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from testing.servers import free_port

SCRIPTS = Path(__file__).parent.parent / "scripts"
"""Those that print where a server is, fetched where there is none."""
READY_WITHIN = 60.0
"""Seconds; an Erlang machine takes two to start on an idle machine, and much longer on a busy one."""


class BrokerServer:
    """A broker in a process group and a folder of its own, both gone with the end of its context manager."""

    binary: str
    script: str

    def __init__(self) -> None:
        folder = subprocess.run([SCRIPTS / self.script], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        self._binary = str(Path(folder) / self.binary)
        self._folder = Path(tempfile.mkdtemp(prefix="oncegate-broker-"))
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    def command(self) -> list[str]:
        """What starts it, after its configuration was written."""
        raise NotImplementedError

    def greeting(self, connection: socket.socket) -> bool:
        """Whether it answers as it should once it is up."""
        raise NotImplementedError

    def start(self) -> None:
        """Start it and wait until it answers. Raises ``RuntimeError`` with its last words if it does not."""
        command = self.command()
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._folder, start_new_session=True
            )
        until = time.monotonic() + READY_WITHIN
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until:
                self.stop()
                last = (self._folder / "log").read_text(errors="replace").splitlines()[-3:]
                raise RuntimeError(f"{self.binary} does not start: {last}")
            time.sleep(0.02)

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
            connection.settimeout(2)
            return self.greeting(connection)
        return False

    def stop(self) -> None:
        """Kill it with what it has started, and wait until it is gone. What it had stored stays."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


class RabbitServer(BrokerServer):
    """RabbitMQ as Debian packages it, without plugins and without epmd."""

    binary = "rabbitmq-node"
    script = "rabbitmq"

    @property
    def url(self) -> str:
        """For clients."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    def command(self) -> list[str]:
        """The configuration: little memory, and no check of the disk that a small machine would fail."""
        (self._folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.port}\n"
            "vm_memory_high_watermark.absolute = 256MB\n"
            "disk_free_limit.absolute = 1MB\n"
            "log.console.level = warning\n"
        )
        return [self._binary, str(self._folder), str(free_port())]

    def greeting(self, connection: socket.socket) -> bool:
        """It answers the protocol's header with a frame: Connection.Start."""
        connection.sendall(b"AMQP\x00\x00\x09\x01")
        return connection.recv(1) == b"\x01"


class NatsServer(BrokerServer):
    """NATS with JetStream, which is what delivers again."""

    binary = "nats-server"
    script = "nats"

    @property
    def url(self) -> str:
        """For clients."""
        return f"nats://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        """Storage in the folder, no other ports."""
        return [self._binary, "-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", str(self._folder / "js")]

    def greeting(self, connection: socket.socket) -> bool:
        """It speaks first, and says whether JetStream is there."""
        return b'"jetstream":true' in connection.recv(4096)
