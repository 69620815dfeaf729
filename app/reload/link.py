"""Messages between the parent of several workers and each of them, over a pair of sockets that is made before the fork."""

import pickle
import socket
import struct
from dataclasses import dataclass
from typing import Any, Final

from oncegate.app.operators.reloading import Reloaded
from oncegate.app.settings.gateway import GatewaySettings

SEND_SECONDS: Final = 5.0
"""A process that takes nothing for so long has stopped."""
_LENGTH: Final = struct.Struct("!I")
_PIECE: Final = 65536


@dataclass(frozen=True, slots=True)
class PrepareNew:
    """A message to a worker: prepare these settings, as reload ``number``."""

    number: int
    settings: GatewaySettings


@dataclass(frozen=True, slots=True)
class InstallNew:
    """A message to a worker: all are ready; serve by what was prepared."""

    number: int


@dataclass(frozen=True, slots=True)
class DropNew:
    """A message to a worker: it is not to be; nothing changes."""

    number: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """A message from a worker: it is ready, or ``refusal`` says why it can't be."""

    number: int
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Installed:
    """A message from a worker: it serves by it."""

    number: int


@dataclass(frozen=True, slots=True)
class Requested:
    """A message from a worker, before it sends SIGHUP: an operator wants a reload, and waits for what comes of it."""

    request: int


@dataclass(frozen=True, slots=True)
class Answered:
    """A message to that worker: the reload's outcome."""

    request: int
    reloaded: Reloaded


class Link:
    """One end of the pair."""

    def __init__(self, channel: socket.socket) -> None:
        channel.settimeout(SEND_SECONDS)
        self.channel = channel
        self._read = b""

    def send(self, message: object) -> None:
        """Send one message. Raises ``OSError`` where the other end is gone, or takes nothing."""
        data = pickle.dumps(message)
        self.channel.sendall(_LENGTH.pack(len(data)) + data)

    def receive(self) -> list[Any]:
        """The messages that have arrived, once some bytes have. Raises ``EOFError`` where the other end is gone."""
        try:
            piece = self.channel.recv(_PIECE)
        except OSError:
            piece = b""
        if not piece:
            raise EOFError
        self._read += piece
        messages = []
        while len(self._read) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._read)[0]
            if len(self._read) < end:
                break
            messages.append(pickle.loads(self._read[_LENGTH.size : end]))  # noqa: S301  # over sockets that nobody else has
            self._read = self._read[end:]
        return messages

    def close(self) -> None:
        """Close this end."""
        self.channel.close()
