"""The running gateway, as seen from the one that replaces it."""

import asyncio
import json
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from oncegate.app.replacement.control import (
    GO,
    HELLO_SECONDS,
    LONGEST,
    MOST_SOCKETS,
    PROTOCOL,
    NotReplaced,
    check_folder,
    parsed,
    user_and_process,
)

CHECK_SECONDS = 0.005
DEATH_SECONDS = 2.0
"""The time between a connection's end and its process's, where it is that which has ended."""


class Predecessor:
    """The running gateway, as seen from the one that replaces it: its process id, its sockets (`take`) and the control socket.

    Made before any fork; each worker then awaits `leave`.
    """

    def __init__(self, connection: socket.socket, sockets: Sequence[socket.socket], pid: int, http: int) -> None:
        self.pid = pid
        self._http = list(sockets[:http])
        self._others = [each for each in sockets[http:] if each.family != socket.AF_UNIX]
        self.control = next((each for each in sockets if each.family == socket.AF_UNIX), None)
        self._connection = connection

    @classmethod
    def at(cls, path: Path, workers: int) -> "Predecessor | None":
        """The gateway that listens at ``path``; ``None``: there is none. Raises `NotReplaced`."""
        with ExitStack() as opened:
            connection = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            connection.settimeout(HELLO_SECONDS)
            try:
                check_folder(path.parent)
                connection.connect(str(path))
                user, _ = user_and_process(connection)
                if user != os.geteuid():
                    raise NotReplaced(f"the running gateway is of user {user}: start the new one as the same")
                connection.sendall(json.dumps({"protocol": PROTOCOL, "workers": workers}).encode() + b"\n")
                data, descriptors, _, _ = socket.recv_fds(connection, LONGEST, MOST_SOCKETS)
            except (FileNotFoundError, ConnectionRefusedError):
                return None
            except OSError as error:
                raise NotReplaced(f"the running gateway does not answer at {path}: {error.strerror or error}") from None
            sockets = [opened.enter_context(socket.socket(fileno=each)) for each in descriptors]
            for each in (connection, *sockets):
                each.set_inheritable(False)
                each.setblocking(False)
            answer = parsed(data)
            pid, http = answer.get("pid"), answer.get("http")
            if not isinstance(pid, int) or not isinstance(http, int) or not 0 < http <= len(sockets):
                raise NotReplaced(str(answer.get("refused", "the running gateway has handed over no sockets")))
            opened.pop_all()  # which stay open
            return cls(connection, sockets, pid, http)

    def close(self) -> None:
        """Break off: the running gateway goes on."""
        for each in (self._connection, self.control, *self._http, *self._others):
            if each is not None:
                each.close()

    def take(self, ops_port: int) -> tuple[list[socket.socket], list[socket.socket]]:
        """Its sockets for requests, and those that listen on ``ops_port``; another such port is nobody's any more, and closed."""
        ops: list[socket.socket] = []
        for each in self._others:
            if each.getsockname()[1] == ops_port:
                ops.append(each)
            else:
                each.close()
        return self._http, ops

    @property
    def has_left(self) -> bool:
        """Whether it serves no more: it has given its place up, or has ended."""
        return self._has_left(self._received())

    def _has_left(self, received: bytes | None) -> bool:
        return received == GO or (received == b"" and not _lives(self.pid))

    async def leave(self, index: int, is_given_up: Callable[[], bool]) -> None:
        """Report that worker ``index`` could serve, and wait until it is to: when all could, or the other one is gone.

        Returns early where it ``is_given_up``. Raises `NotReplaced`.
        """
        with suppress(OSError):
            self._connection.send(bytes([index]))
        patience = DEATH_SECONDS
        while not is_given_up():
            received = self._received()
            if self._has_left(received):
                return
            if received or patience <= 0:
                broke_off = "the running gateway broke off, and goes on"
                raise NotReplaced(str(parsed(received or b"").get("refused", broke_off)))
            if received == b"":
                patience -= CHECK_SECONDS
            await asyncio.sleep(CHECK_SECONDS)  # not by a reader: what came stays there, for the other workers

    def _received(self) -> bytes | None:
        """The bytes that it has sent; empty: it has broken off; ``None``: nothing yet."""
        try:
            return self._connection.recv(LONGEST, socket.MSG_PEEK)
        except BlockingIOError:
            return None
        except OSError:
            return b""


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
