"""`SyncCommandProcessor`: for callers without an event loop, such as threads, scripts, Celery tasks, Django views.

`CallingThreads` has plain functions executed in the calling thread, which has the database connection, the transaction and
the thread's locals. Claim, lease and outcome are the event loop's, in the processor's own thread; the calling thread only waits,
until the loop hands it the call to make.
"""

import asyncio
import inspect
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Generic, cast

from oncegate.middleware.calls.arguments import FunctionCall
from oncegate.middleware.calls.processor import CommandProcessor, Payload, Result
from oncegate.middleware.outcome.errors import ENDS_PROCESS, NotProcessed

_Outcome = tuple[Any, BaseException | None]


class SyncCommandProcessor(Generic[Payload, Result]):
    """A `CommandProcessor` for callers without an event loop: one loop in a thread of its own serves all of them.

    Use it from any number of threads. It takes over the processor, and its cache: `close`, or the end of a ``with`` block,
    ends both. Make it after a fork (in each worker of a preforking server), not before.
    """

    def __init__(self, processor: CommandProcessor[Payload, Result]) -> None:
        if not isinstance(processor, CommandProcessor):
            raise TypeError(f"processor is a {type(processor).__qualname__}: give a CommandProcessor(...)")
        self._processor = processor
        self._process_id = os.getpid()
        self._guard = threading.Lock()
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="oncegate", daemon=True)
        self._thread.start()

    def process(
        self,
        command: Payload,
        *,
        idempotency_key: str | None = None,
        caller: str = "",
        raise_on_duplicate: bool = False,
        wait: float | None = None,
    ) -> Result:
        """See `CommandProcessor.process`; called from any thread. An interrupted call leaves the execution to go on.

        Raises ``RuntimeError`` once closed, in a forked child, and from within the loop itself, where it would never end.
        """
        if os.getpid() != self._process_id:
            raise RuntimeError("a SyncCommandProcessor does not survive a fork: make one in the child")
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                "called from a coroutine that it is running itself: await CommandProcessor.process there"
            )
        with self._guard:
            if self._closed:
                raise RuntimeError("the SyncCommandProcessor is closed")
            call = self._processor.process(
                command,
                idempotency_key=idempotency_key,
                caller=caller,
                raise_on_duplicate=raise_on_duplicate,
                wait=wait,
            )
            future = asyncio.run_coroutine_threadsafe(_ended(call), self._loop)
        return self._result(command, future)

    def _result(self, command: Payload, future: "Future[_Outcome]") -> Result:  # noqa: ARG002 - a subclass executes it here
        """Wait in the calling thread for the result of ``command``."""
        return cast(Result, _given(future.result()))

    def close(self, timeout: float = 30.0) -> None:
        """Wait for executions at most ``timeout`` seconds, then end the loop and the cache's connections. Idempotent.

        A call that only waits for another's outcome by then raises ``concurrent.futures.CancelledError``.
        """
        with self._guard:
            if self._closed or os.getpid() != self._process_id:
                return
            self._closed = True
        asyncio.run_coroutine_threadsafe(self._end(timeout), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self, timeout: float) -> None:
        await self._processor.drain(timeout)
        # Nobody would ever wake a caller whose task is still there when the loop stops.
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await self._processor.cache.close()
        await self._loop.shutdown_asyncgens()

    def __enter__(self) -> "SyncCommandProcessor[Payload, Result]":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def _ended(call: Coroutine[Any, Any, Any]) -> _Outcome:
    """The outcome of ``call``, for its own thread. What ends a process is raised there: here it would end the loop, and
    leave all its waiters waiting for ever.
    """
    try:
        return await call, None
    except ENDS_PROCESS as error:
        return None, error


def _given(outcome: _Outcome) -> Any:
    """The result of an outcome; raises its error."""
    result, error = outcome
    if error is not None:
        raise error
    return result


class ThreadedCall(FunctionCall):
    """A `FunctionCall` that is made in the thread that waits for it."""

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
        return _given(await turn.outcome)

    def wait(self, future: "Future[_Outcome]") -> Any:
        """In the calling thread: make the call when it is to be made; the result."""
        future.add_done_callback(lambda _: self._wanted.put(None))
        while (turn := self._wanted.get()) is not None:
            turn.take()
        return _given(future.result())

    def leave(self) -> None:
        """The calling thread does nothing more: a call that was interrupted before it was made is not made any more."""
        with self._guard:
            self._left = True
            for turn in self._turns:
                turn.refuse()


class CallingThreads(SyncCommandProcessor[ThreadedCall, Any]):
    """A `SyncCommandProcessor` whose commands are executed in the threads that give them; they `ThreadedCall.leave` then."""

    def _result(self, command: ThreadedCall, future: "Future[_Outcome]") -> Any:
        return command.wait(future)


class _Turn:
    """A call that the loop wants to be made, once; and its outcome, for the loop."""

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
