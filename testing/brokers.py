"""Real brokers for tests: RabbitMQ and NATS with JetStream."""

import socket

from testing.servers import FetchedServer, free_port


class RabbitServer(FetchedServer):
    """RabbitMQ as Debian packages it, without plugins and without epmd."""

    binary = "rabbitmq-node"
    script = "rabbitmq"

    @property
    def url(self) -> str:
        """For clients."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    def _command(self) -> list[str]:
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


class NatsServer(FetchedServer):
    """NATS with JetStream, which is what delivers again."""

    binary = "nats-server"
    script = "nats"

    @property
    def url(self) -> str:
        """For clients."""
        return f"nats://127.0.0.1:{self.port}"

    def _command(self) -> list[str]:
        """Storage in the folder, no other ports."""
        return [self._binary, "-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", str(self._folder / "js")]

    def greeting(self, connection: socket.socket) -> bool:
        """It speaks first, and says whether JetStream is there."""
        return b'"jetstream":true' in connection.recv(4096)
