"""The running gateway's side: it hands over its sockets, and leaves once the new one can serve."""

import asyncio
import json
import logging
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress

from oncegate.app.replacement.control import (
    GO,
    HELLO_SECONDS,
    LONGEST,
    PROTOCOL,
    START_SECONDS,
    NotReplaced,
    parsed,
    user_and_process,
)

log = logging.getLogger("oncegate.serve")


class ControlSocket:
    """The socket by which the gateway of process ``pid`` is replaced: that gets ``sockets``, the first ``http`` for requests.

    Of the first worker alone, in its event loop: a second replacement at the same time is refused. ``replaced`` is called when
    the new gateway serves. From then on that one alone accepts connections: the socket is its own, too.
    """

    def __init__(
        self,
        control: socket.socket,
        sockets: Sequence[socket.socket],
        http: int,
        pid: int,
        replaced: Callable[[], None],
    ) -> None:
        self._control = control
        self._sockets = sockets
        self._http = http
        self._pid = pid
        self._replaced = replaced
        self._successor: int | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._again: asyncio.TimerHandle | None = None
        self._ends = False

    def start(self) -> None:
        """Begin to accept connections."""
        asyncio.get_running_loop().add_reader(self._control, self._accept)

    async def stop(self) -> None:
        """Accept no more of them. A new gateway that is being started serves as soon as it can."""
        self._ends = True
        self._pause()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _pause(self) -> None:
        if self._again is not None:
            self._again.cancel()
        asyncio.get_running_loop().remove_reader(self._control)

    def _accept(self) -> None:
        try:
            connection, _ = self._control.accept()
        except BlockingIOError:  # it has left again, or the new gateway was quicker
            return
        except OSError as error:
            log.warning("the control socket can't accept: %s", error.strerror or error)
            self._pause()
            self._again = asyncio.get_running_loop().call_later(1, self.start)
            return
        connection.setblocking(False)
        task = asyncio.get_running_loop().create_task(self._serve(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                await self._replace(connection)
            except NotReplaced as refusal:
                log.warning("not replaced: %s", refusal)
                with suppress(OSError):
                    connection.send(json.dumps({"refused": str(refusal)}).encode() + b"\n")
            except OSError as error:
                log.warning("not replaced: %s", error.strerror or error)

    async def _replace(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        user, process = user_and_process(connection)
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                received = await loop.sock_recv(connection, LONGEST)
        except TimeoutError:
            return
        if not received:  # somebody wanted to know whether anybody listens
            return
        # Not before that: closed with bytes unread, the connection would be reset, and the line lost.
        if user != os.geteuid():
            raise NotReplaced(f"process {process} is of user {user}, and the running gateway of user {os.geteuid()}")
        hello = parsed(received)
        workers = hello.get("workers")
        if hello.get("protocol") != PROTOCOL or not isinstance(workers, int) or workers < 1:
            raise NotReplaced("the running gateway is of another version: stop it, and start the new one")
        if self._successor is not None:
            raise NotReplaced(f"another one, process {self._successor}, is being started in its place")
        self._successor, is_replaced = process, False
        try:
            answer = json.dumps({"pid": self._pid, "http": self._http}).encode() + b"\n"
            socket.send_fds(connection, [answer], [each.fileno() for each in (*self._sockets, self._control)])
            log.info("process %d is being started in this gateway's place", process)
            await self._until_started(connection, workers, process)
            is_replaced = True
        except ConnectionError:
            log.warning("process %d has ended before it could serve: this gateway goes on", process)
        finally:
            if not is_replaced:
                self._successor = None

    async def _until_started(self, connection: socket.socket, workers: int, process: int) -> None:
        loop = asyncio.get_running_loop()
        started: set[int] = set()
        try:
            async with asyncio.timeout(START_SECONDS):
                while len(started) < workers:
                    data = await loop.sock_recv(connection, LONGEST)
                    if not data:
                        raise ConnectionResetError
                    started.update(data)
        except TimeoutError:
            raise NotReplaced(f"process {process} could not serve within {START_SECONDS:g} s") from None
        except asyncio.CancelledError:
            if self._ends:
                connection.send(GO)
            raise
        self._pause()  # first: who comes to replace the new one must not be given this one's place once more
        try:
            connection.send(GO)
        except OSError:  # it has just ended
            self.start()
            raise
        self._replaced()
        log.info("process %d serves from now on: connections and attempts of this one end in order", process)
