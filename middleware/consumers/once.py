"""`Once`: one delivery as a loop of zero or one rounds, so that a body that must not be executed is not reached.

A context manager can't skip its body. A loop can, but does not see what its body raises: so its round is a context manager.
"""

from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from types import TracebackType

from oncegate.middleware.consumers.begun import Begun
from oncegate.middleware.consumers.delivery import Action
from oncegate.middleware.consumers.handling import NotRecorded, executing, settle_raised
from oncegate.middleware.consumers.sent_back import log_sent_back


class Once:
    """What `Subscription.once` returns: ``async for attempt in once: async with attempt: ...``.

    The loop has one round if the delivery is to be executed, and none otherwise. To leave ``async with`` is the outcome:
    normally, or by ``break`` or ``return``, a success, unless another outcome was given; by an exception as recorded by
    `Subscription.execute`, and it is raised. Raises `NotRecorded` where a success is not in the cache: don't acknowledge.

    ``action`` is for the broker, and ``begun`` has the rest: ``async with attempt as begun`` gives it to the body. A round
    without ``async with`` is a ``RuntimeError`` at its end, and of unknown outcome.
    """

    def __init__(self, begin: Callable[[], Awaitable[Begun]]) -> None:
        self.begun: Begun | None = None
        """What was decided, once it is."""
        self._begin = begin
        self._decided = False
        self._entered = False
        self._executing = ExitStack()

    @property
    def action(self) -> Action:
        """The action for the broker; not to acknowledge, as long as nothing is decided."""
        return Action.REDELIVER if self.begun is None else self.begun.action

    def __aiter__(self) -> "Once":
        return self

    async def __anext__(self) -> "Once":
        if not self._decided:
            self._decided = True
            self.begun = await self._begin()
            if self.begun.run:
                return self
        elif self.begun is not None and self.begun.run and not self._entered:
            await self.begun.abandon("nobody said how it ended")
            raise RuntimeError("the body of 'async for attempt in once' has to be 'async with attempt'")
        raise StopAsyncIteration

    async def __aenter__(self) -> Begun:
        if self.begun is None or not self.begun.run or self._entered:
            raise RuntimeError("not to be executed: enter what 'async for attempt in once' gives, and that once")
        self._entered = True
        self._executing.enter_context(executing(self.begun))
        return self.begun

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._executing.close()
        if self.begun is not None:
            await leave(self.begun, error)


async def leave(begun: Begun, error: BaseException | None) -> None:
    """Settle what is executed in a context, which is left by ``error``. Raises `NotRecorded`."""
    if error is None:
        recording = await (begun.recorded() if begun.settled else begun.succeed())
        if not recording and begun.succeeded:
            raise NotRecorded(recording, begun.record)
    elif begun.settled:
        pass
    elif isinstance(error, GeneratorExit):  # the surrounding coroutine is being closed: it can't await any more
        begun.abandon_soon("the code that executed it was closed")
    else:
        log_sent_back(begun.named, error)
        await settle_raised(begun, error)
