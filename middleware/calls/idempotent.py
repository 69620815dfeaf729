"""The decorator `idempotent`: a `CommandProcessor` whose commands are a function's calls, under keys made of their arguments."""

import atexit
import functools
import inspect
import os
import threading
import types
import typing
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from pydantic.errors import PydanticUserError

from oncegate.cache.seconds import given_seconds
from oncegate.cache.store import Cache
from oncegate.middleware.calls.arguments import Choose, FunctionCall, Signature
from oncegate.middleware.calls.processor import CommandProcessor
from oncegate.middleware.calls.sync import CallingThreads, ThreadedCall
from oncegate.middleware.outcome.results import Codec, command_form
from oncegate.middleware.rules.checks.arguments import given_settings, named_only
from oncegate.middleware.rules.decorated import note_decorated
from oncegate.middleware.rules.errors import CallerMissing, KeyMissing
from oncegate.middleware.rules.keys.digests import Secrets
from oncegate.middleware.rules.keys.key import KeyText, caller_scope, key_text
from oncegate.middleware.rules.settings import IdempotencySettings

P = ParamSpec("P")
R = TypeVar("R")

_FUNCTION = b"python function"
"""No header has such a name: a function's keys are never a request's, even in one namespace."""


@named_only(0, "@idempotent takes its arguments by name, in brackets: @idempotent(key=..., cache=...)")
def idempotent(
    *,
    key: Callable[..., KeyText],
    cache: Cache | str,
    name: str | None = None,
    payload: Callable[..., Any] | None = None,
    caller: Callable[..., KeyText] | None = None,
    ttl: float | None = None,
    error_ttl: float | None = None,
    settings: IdempotencySettings | None = None,
    namespace: str = "default",
    secret: Secrets = None,
    result_type: Any = None,
    codec: Codec[Any] | None = None,
    wait: float | None = None,
    raise_on_duplicate: bool = False,
    max_in_flight: int = 1000,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator: the function, ``async`` or plain, is executed once per key. ``@idempotent(key=lambda order: order.id, ...)``

    - ``key``: a function that gives the key of a call. It is called with those of the call's arguments that its own parameters
      name; ``payload`` and ``caller``, too.
    - ``name``: part of every record's address, so that keys are the function's own. By default module and qualified name: give
      one that stays when the function moves.
    - ``payload``: gives what a second call with the key is compared by, in JSON; by default all arguments but ``self``.
    - ``caller``: gives who calls; each caller has keys of its own.
    - ``ttl``, ``error_ttl``: seconds that a result, or an error, is kept; they stand above ``settings``.
    - ``result_type``, ``codec``: how a result is kept, as for `CommandProcessor`; by default by the return annotation.
    - ``wait``: seconds that a call waits for a concurrent one with the same key; by default as the settings say.
    - ``raise_on_duplicate``: a later call raises `DuplicateCommandError`, which has the result.
    - ``cache``, ``settings``, ``namespace``, ``secret``, ``max_in_flight``: as for `CommandProcessor`.

    A later call gets what the first one returned. A plain function is executed in the calling thread.

    Raises ``TypeError`` and ``ValueError`` at once for what can't be decorated so. A call raises what
    `CommandProcessor.process` raises, `KeyMissing` where ``key`` gives ``None``, `CallerMissing` where ``caller`` gives none.
    """

    if wait is not None:
        (wait,) = given_seconds(wait=wait)

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        _check_decorated(function)
        make = functools.partial(
            _Calls,
            name=_name(function) if name is None else name,
            cache=cache,
            settings=_rules(settings, ttl=ttl, error_ttl=error_ttl),
            namespace=namespace,
            secret=secret,
            result_type=_return_type(function) if result_type is None and codec is None else result_type or Any,
            codec=codec,
            max_in_flight=max_in_flight,
        )
        options = {"wait": wait, "raise_on_duplicate": raise_on_duplicate}
        note_decorated(function)
        return cast(Callable[P, R], _Door(function, make, key, payload, caller, options).wrapped())

    return decorate


def _check_decorated(function: object) -> None:
    """Raises ``TypeError`` for what is no function, or one that is not over when it returns."""
    wrong = ""
    if isinstance(function, staticmethod | classmethod):
        wrong = f"a {type(function).__name__}: put it below @{type(function).__name__}"
    elif isinstance(function, type):
        wrong = f"the class {function.__name__}: decorate its methods"
    elif not inspect.isfunction(function):
        wrong = f"a {type(function).__qualname__}: decorate the 'def' itself, below what makes one of it"
    elif inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        wrong = f"the generator {function.__qualname__}(), which has no one result to be kept"
    if wrong:
        raise TypeError(f"@idempotent is for functions, and this is {wrong}")


def _name(function: Callable[..., Any]) -> str:
    if "<lambda>" in function.__qualname__:
        raise ValueError("a lambda has no name of its own: give name=")
    return f"{function.__module__}.{function.__qualname__}"


def _rules(settings: IdempotencySettings | None, **own: float | None) -> IdempotencySettings:
    given = given_settings(settings, IdempotencySettings).model_dump()
    return IdempotencySettings(**given | {name: value for name, value in own.items() if value is not None})


_RESULT = "what {}() returns can't be kept by its annotation: give result_type= or codec="


def _return_type(function: Callable[..., Any]) -> Any:
    """The return annotation's, ``Any`` without one. Only that is read: others may be for type checkers alone."""
    annotation = {each: hint for each, hint in function.__annotations__.items() if each == "return"}
    holder = types.SimpleNamespace(__annotations__=annotation)
    names = getattr(inspect.unwrap(function), "__globals__", {})
    try:
        return typing.get_type_hints(holder, names, include_extras=True).get("return", Any)
    except Exception as error:  # noqa: BLE001 - whatever an annotation's text raises
        raise TypeError(f"{_RESULT.format(function.__qualname__)} ({error})") from None


class _Calls(CommandProcessor[Any, Any]):
    """The processor of one function's calls."""

    def _scope(self, caller: str) -> list[bytes] | None:
        return [_FUNCTION, self._name, *(caller_scope(caller) or ())]

    def _form(self, command: Any) -> bytes:
        try:
            return command_form(command.payload)
        except TypeError as error:
            raise TypeError(f"{error}: say by payload= what of {self._name.decode()}() counts") from None


class _Door:
    """The function's processor, of this process: a forked child has one of its own."""

    def __init__(
        self,
        function: Callable[..., Any],
        make: Callable[..., _Calls],
        key: Callable[..., Any],
        payload: Callable[..., Any] | None,
        caller: Callable[..., Any] | None,
        options: dict[str, Any],
    ) -> None:
        self._function = function
        self._is_async = inspect.iscoroutinefunction(function)
        self._signature = signature = Signature(function)
        self._key = signature.chosen("key", key)
        self._payload: Choose = signature.everything if payload is None else signature.chosen("payload", payload)
        self._caller = None if caller is None else signature.chosen("caller", caller)
        self._options = options
        self._make = make
        self._guard = threading.Lock()
        self._process_id = os.getpid()
        self._processor = self._made()
        self._threads: CallingThreads | None = None

    def wrapped(self) -> Callable[..., Any]:
        """The function's replacement: a coroutine function for a coroutine function, a plain one for a plain one."""

        @functools.wraps(self._function)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            call, options = self._call(FunctionCall, args, kwargs)
            return await self._of_this_process().process(call, **options)

        @functools.wraps(self._function)
        def called(*args: Any, **kwargs: Any) -> Any:
            call, options = self._call(ThreadedCall, args, kwargs)
            try:
                return self._of_threads().process(call, **options)
            finally:
                call.leave()

        return awaited if self._is_async else called

    def _call(self, kind: type[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The call as a command, and how it is to be processed: under which key, of which caller."""
        arguments = self._signature.arguments(args, kwargs)
        key = self._key(arguments)
        if key is None:
            raise KeyMissing(f"{self._signature.name} has no idempotency key in this call: key gave None.")
        options = self._options | {"idempotency_key": key_text(key, "key")}
        if self._caller is not None:
            options["caller"] = self._name_of(self._caller(arguments))
        return kind(self._function, args, kwargs, self._payload(arguments)), options

    def _name_of(self, caller: Any) -> str:
        name = "" if caller is None else key_text(caller, "caller")
        if not name:
            raise CallerMissing(f"{self._signature.name} does not know its caller in this call: caller gave none.")
        return name

    def _made(self) -> _Calls:
        try:
            return self._make(_awaited if self._is_async else _in_its_thread)
        except PydanticUserError:
            raise TypeError(f"{_RESULT.format(self._function.__qualname__)} (pydantic has no such type)") from None

    def _of_this_process(self) -> _Calls:
        if self._process_id != os.getpid():
            self._guard = threading.Lock()  # another thread of the parent's may have held it
            self._process_id, self._processor, self._threads = os.getpid(), self._made(), None
        return self._processor

    def _of_threads(self) -> CallingThreads:
        processor = self._of_this_process()
        with self._guard:
            if self._threads is None:
                self._threads = CallingThreads(processor)
                atexit.register(self._threads.close)  # outcomes that the cache does not have yet are recorded
            return self._threads


async def _awaited(call: FunctionCall) -> Any:
    return await call.make()


async def _in_its_thread(call: FunctionCall) -> Any:
    return await cast(ThreadedCall, call).made()
