"""Allows a consumer one handler only, whose inbox, if it has one, digests by the same secrets.

Two would share its records, and each would skip what the other has processed.
"""

import functools
import inspect
from collections.abc import Callable, Hashable
from typing import Any

from oncegate.middleware.consumers.transactional import check_secrets, inbox_of
from oncegate.middleware.rules.keys.digests import Digests

Handler = Callable[..., Any]


class SoleHandler:
    """The one handler of ``consumer``, whose keys are digested by ``digests``: another than the first is refused."""

    def __init__(self, consumer: str, digests: Digests) -> None:
        self._consumer = consumer
        self._digests = digests
        self._registered: tuple[Handler, ...] = ()
        self._code: tuple[Hashable, ...] = ()

    def register(self, *handlers: Handler) -> None:
        """Register the consumer's handlers. Raises ``ValueError`` for others, ``TypeError`` for what is no handler."""
        if self._registered and handlers != self._registered:
            raise self._another(handlers[0])
        for handler in handlers:
            self._check(handler, tuple(_what_runs(each) for each in handlers))
        self._registered = handlers

    def call(self, handler: Handler) -> None:
        """The same for a handler at its call: one that is made anew for each message is one handler if it is the same code."""
        found = _what_runs(handler)
        if found not in self._code:
            self._check(handler, (found,))

    def _check(self, handler: Handler, code: tuple[Hashable, ...]) -> None:
        if self._code and code != self._code:
            raise self._another(handler)
        check_kind(handler)
        check_secrets(inbox_of(handler), self._digests)
        self._code = code

    def _another(self, handler: Handler) -> ValueError:
        return ValueError(
            f"{_name(handler)} would share the records of the consumer {self._consumer!r} with another handler, and each would"
            " skip what the other has processed: give it a Subscription of its own, under another consumer's name"
        )


def check_kind(handler: Handler) -> None:
    """Raises ``TypeError`` for what is no function, or whose call would execute nothing: one line for the operator."""
    inner = _unwrapped(handler)
    if not callable(inner):
        raise TypeError(f"a handler is a function, and no {type(handler).__name__}")
    if isinstance(inner, type):
        raise TypeError(f"{_name(handler)} is a class: give a function as the handler, or an instance with __call__")
    for function in (inner, type(inner).__call__):
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            raise TypeError(f"{_name(handler)} is a generator, of which nothing would be executed: return, don't yield")


def _unwrapped(handler: Any) -> Any:
    """The function inside of decorators, partials and methods."""
    while True:
        inner = handler.func if isinstance(handler, functools.partial) else handler
        inner = getattr(inner, "__wrapped__", inner)
        inner = getattr(inner, "__func__", inner)
        if inner is handler:
            return inner
        handler = inner


def _what_runs(handler: Handler) -> Hashable:
    inner = _unwrapped(handler)
    code: Hashable = getattr(inner, "__code__", None)
    return code or (type(inner), _name(inner))


def _name(handler: Any) -> str:
    inner = _unwrapped(handler)
    name: str = getattr(inner, "__qualname__", type(inner).__qualname__)
    return name
