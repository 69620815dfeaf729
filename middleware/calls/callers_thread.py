"""Executes plain functions in the calling thread, which has the database connection, the transaction and the thread's locals.

The claim, the lease and the outcome are the event loop's, in the `SyncCommandProcessor`'s own thread. The calling thread only
waits, until the loop hands it the call to make.
"""

import asyncio
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from oncegate.middleware.calls.arguments import Call
from oncegate.middleware.calls.sync import SyncCommandProcessor
from oncegate.middleware.outcome.errors import NotProcessed

_Outcome = tuple[Any, BaseException | None]


class ThreadedCall(Call):
    """A `Call` that is made in the thread that waits for it."""

    def __init__(self, *call: Any) -> None:
        super().__init__(*call)
        self._wanted: SimpleQueue[_Turn | None] = SimpleQueue()
        self._turns: list[_Turn] = []
        self._guard = threading.Lock()
        self._left = False

    async def made(self) -> Any:
        """In the event loop: the call's result. Raises `NotProcessed` where no thread is left to make it."""
        turn = _Turn(self.make)
        with self._guard:
            if self._left:
                turn.refuse()
            self._turns.append(turn)
        self._wanted.put(turn)
        result, error = await turn.outcome
        if error is not None:
            raise error
        return result

    def wait(self, future: "Future[Callable[[], Any]]") -> Any:
        """In the calling thread: make the call when it is to be made; the result."""
        future.add_done_callback(lambda _: self._wanted.put(None))
        while (turn := self._wanted.get()) is not None:
            turn.take()
        return future.result()()

    def leave(self) -> None:
        """The calling thread does nothing more: a call that was interrupted before it was made is not made any more."""
        with self._guard:
            self._left = True
            for turn in self._turns:
                turn.refuse()


class CallingThreads(SyncCommandProcessor[ThreadedCall, Any]):
    """A `SyncCommandProcessor` whose commands are executed in the threads that give them; they `ThreadedCall.leave` then."""

    def _result(self, command: ThreadedCall, future: "Future[Callable[[], Any]]") -> Any:
        return command.wait(future)


class _Turn:
    """Once: the call that the loop wants to be made, and what came of it, for the loop."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._begun = False
        self.outcome: asyncio.Future[_Outcome] = self._loop.create_future()

    def take(self) -> None:
        """Make the call, and pass its result to the loop."""
        if self._begun:
            return
        self._begun = True
        try:
            outcome: _Outcome = (_no_coroutine(self._make()), None)
        except BaseException as error:  # noqa: BLE001  # whatever it is: the loop decides, and has it raised in this thread
            outcome = (None, error)
        self._send(outcome)

    def refuse(self) -> None:
        """It is not made any more, unless it is already."""
        if not self._begun:
            self._begun = True
            self._send((None, NotProcessed("The caller was interrupted before the call was made.")))

    def _send(self, outcome: _Outcome) -> None:
        with suppress(RuntimeError):  # closed, after waiting for us: the future that the caller has was cancelled
            self._loop.call_soon_threadsafe(self._receive, outcome)

    def _receive(self, outcome: _Outcome) -> None:
        if not self.outcome.done():  # ``attempt_timeout`` does not wait for a thread
            self.outcome.set_result(outcome)


def _no_coroutine(result: Any) -> Any:
    if inspect.iscoroutine(result):
        result.close()
        raise NotProcessed("The function gave a coroutine, which has not begun: decorate the 'async def' itself.")
    return result
