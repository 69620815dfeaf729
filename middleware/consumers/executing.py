"""The delivery that is being executed: for what a handler stands on, which is called without it."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Final

from oncegate.middleware.consumers.begun import Begun

_CURRENT: Final[ContextVar[tuple[Begun, ...]]] = ContextVar("oncegate.executing", default=())


def current() -> tuple[Begun, ...]:
    """The delivery for which this task or thread executes a handler, or those of its batch; none outside of one."""
    return _CURRENT.get()


@contextmanager
def executing(*begun: Begun) -> Iterator[None]:
    """Within it, and in the tasks and threads that are started in it, ``begun`` are `current`."""
    token = _CURRENT.set(begun)
    try:
        yield
    finally:
        with suppress(
            ValueError
        ):  # closed from elsewhere, as by the garbage collector: that context's variable is not ours
            _CURRENT.reset(token)
