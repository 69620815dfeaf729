"""`SyncCommandProcessor`: for callers without an event loop, such as threads, scripts, Celery tasks, Django views."""

import asyncio
import functools
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Generic, NoReturn

from oncegate.middleware.calls.processor import Command, CommandProcessor, Result
from oncegate.middleware.outcome.errors import ENDS_PROCESS


class SyncCommandProcessor(Generic[Command, Result]):
    """A `CommandProcessor` for callers without an event loop: one loop in a thread of its own serves all of them.

    Use it from any number of threads. It takes over the processor, and its cache: `close`, or the end of a ``with`` block,
    ends both. Make it after a fork (in each worker of a preforking server), not before.
    """

    def __init__(self, processor: CommandProcessor[Command, Result]) -> None:
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
        command: Command,
        *,
        idempotency_key: str | None = None,
        caller: str = "",
        raise_on_duplicate: bool = False,
        wait: float = 0.0,
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
            future = asyncio.run_coroutine_threadsafe(
                _ended(
                    self._processor.process(
                        command,
                        idempotency_key=idempotency_key,
                        caller=caller,
                        raise_on_duplicate=raise_on_duplicate,
                        wait=wait,
                    )
                ),
                self._loop,
            )
        return self._result(command, future)

    def _result(self, command: Command, future: "Future[Callable[[], Result]]") -> Result:  # noqa: ARG002 - a subclass executes it here
        """Wait in the calling thread for the result of ``command``."""
        return future.result()()

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

    def __enter__(self) -> "SyncCommandProcessor[Command, Result]":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def _ended(call: Coroutine[Any, Any, Result]) -> Callable[[], Result]:
    """Pass the result of ``call`` to its own thread, or raise there what ends a process: here it would end the loop,
    and leave all its waiters waiting for ever.
    """
    try:
        result = await call
    except ENDS_PROCESS as error:
        return functools.partial(_raise, error)
    return lambda: result


def _raise(error: BaseException) -> NoReturn:
    raise error
