"""`Once`: one delivery as a loop of zero or one rounds, so that a body that must not be executed is not reached.

A context manager can't skip its body. A loop can, but does not see what its body raises: so its round is a context manager.
"""

from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from types import TracebackType

from oncegate.middleware.consumers.begun import Begun, Execution
from oncegate.middleware.consumers.delivery import Action
from oncegate.middleware.consumers.handlers.handling import NotRecorded, executing, settle_raised
from oncegate.middleware.consumers.handlers.sent_back import log_sent_back


class Once:
    """A loop around what executes a command: ``async for attempt in once: async with attempt: ...``, by `Subscription.once`.

    The loop has one round if the delivery is to be executed, and none otherwise. To leave ``async with`` is the outcome:
    normally, or by ``break`` or ``return``, a success, unless another outcome was given; by an exception as recorded by
    `Subscription.execute`, and it is raised. Raises `NotRecorded` where a success is not in the cache: don't acknowledge.

    ``action`` is for the broker, and ``begun`` has the rest. ``async with attempt as execution`` gives the body the
    `Execution`. A round without ``async with`` is a ``RuntimeError`` at its end, and of unknown outcome.
    """

    def __init__(self, begin: Callable[[], Awaitable[Begun]]) -> None:
        self._begun: Begun | None = None
        self._begin = begin
        self._decided = False
        self._entered = False
        self._executing = ExitStack()

    @property
    def begun(self) -> Begun | None:
        """The decision, once there is one; after the loop, with what came of it."""
        begun = self._begun
        return begun.execution.begun if begun is not None and begun.run else begun

    @property
    def action(self) -> Action:
        """The action for the broker; not to acknowledge, as long as nothing is decided."""
        begun = self.begun
        return Action.REDELIVER if begun is None else begun.action

    def __aiter__(self) -> "Once":
        return self

    async def __anext__(self) -> "Once":
        if not self._decided:
            self._decided = True
            self._begun = await self._begin()
            if self._begun.run:
                return self
        elif self._begun is not None and self._begun.run and not self._entered:
            await self._begun.execution.abandon("nobody said how it ended")
            raise RuntimeError("the body of 'async for attempt in once' has to be 'async with attempt'")
        raise StopAsyncIteration

    async def __aenter__(self) -> Execution:
        if self._begun is None or not self._begun.run or self._entered:
            raise RuntimeError("not to be executed: enter what 'async for attempt in once' gives, and that once")
        self._entered = True
        execution = self._begun.execution
        self._executing.enter_context(executing(execution.context))
        return execution

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._executing.close()
        if self._begun is not None:
            await _leave(self._begun.execution, error)


async def _leave(execution: Execution, error: BaseException | None) -> None:
    """Settle what is executed, which is left by ``error``. Raises `NotRecorded`."""
    if error is None:
        recording = await (execution.recorded() if execution.settled else execution.succeed())
        if not recording and execution.succeeded:
            raise NotRecorded(recording, execution.context.record)
    elif execution.settled:
        pass
    elif isinstance(error, GeneratorExit):  # the surrounding coroutine is being closed: it can't await any more
        execution.abandon_soon("the code that executed it was closed")
    else:
        log_sent_back(execution.named, error)
        await settle_raised(execution, error)
