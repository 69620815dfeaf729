"""Checks the arguments of the public classes when they are built: an error names the argument, and what to give instead."""

import functools
import inspect
from collections.abc import Callable, Sequence
from types import UnionType
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from oncegate.middleware.rules.settings import Route

Settings = TypeVar("Settings")
Options = ParamSpec("Options")
Made = TypeVar("Made")


def named_only(by_place: int, usage: str) -> Callable[[Callable[Options, Made]], Callable[Options, Made]]:
    """Decorates what takes ``by_place`` arguments by place (``self`` is one): more are a ``TypeError`` that says ``usage``."""

    def decorate(made: Callable[Options, Made]) -> Callable[Options, Made]:
        @functools.wraps(made)
        def checked(*given: Options.args, **options: Options.kwargs) -> Made:
            if len(given) > by_place:
                raise TypeError(usage)
            return made(*given, **options)

        return checked

    return decorate


def given_settings(settings: object, kind: type[Settings]) -> Settings:
    """``settings``, or the defaults for ``None``. Raises ``TypeError`` for anything else than a ``kind``."""
    if settings is None:
        return kind()
    if not isinstance(settings, kind):
        raise TypeError(f"settings is {_named(settings)}: give {kind.__name__}(...)")
    return settings


def given_routes(routes: object) -> tuple[Route, ...]:
    """``routes`` as a tuple. Raises ``TypeError`` where it is no sequence of `Route`."""
    if not isinstance(routes, Sequence) or isinstance(routes, str | bytes):
        raise TypeError(f'routes is {_named(routes)}: give a list, [Route(path="/...")]')
    for index, route in enumerate(routes):
        if not isinstance(route, Route):
            raise TypeError(f'routes[{index}] is {_named(route)}: give Route(path="/...")')
    return tuple(routes)


def given_namespace(namespace: object) -> str:
    """``namespace``. Raises ``TypeError`` for no text, ``ValueError`` for one that can't be a part of a key."""
    if not isinstance(namespace, str):
        raise TypeError(f"namespace is {_named(namespace)}: give a str")
    if not namespace or ":" in namespace:
        raise ValueError("namespace must not be empty and must not hold a colon")
    return namespace


def check_callable(name: str, value: object, example: str, *, optional: bool = False) -> None:
    """Raises ``TypeError`` where the argument ``name`` can't be called (nor is ``None``, where it is ``optional``)."""
    if not callable(value) and not (optional and value is None):
        raise TypeError(f"{name} is {_named(value)}: give {example}")


def check_counts(**counts: object) -> None:
    """Raises ``TypeError`` for one of ``counts`` that is no whole number, by its name: a variable of the environment is text."""
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} is {_named(value)}: give a whole number")


def annotations_of(function: Any) -> dict[str, Any]:
    """The types that its annotations name; none where they can't be read here (imported for type checkers alone, say)."""
    try:
        return get_type_hints(function if inspect.isroutine(function) else type(function).__call__)
    except Exception:  # noqa: BLE001  # whatever it takes to evaluate somebody's annotations
        return {}


def excludes(annotation: object, *kinds: type) -> bool:
    """Whether what is annotated so can take none of ``kinds``: a class that is unrelated to each of them, and no protocol."""
    found = get_origin(annotation) or annotation
    if found in (Union, UnionType):
        return all(excludes(each, *kinds) for each in get_args(annotation))
    if found is Any or not isinstance(found, type) or getattr(found, "_is_protocol", False):
        return False
    return not any(issubclass(kind, found) or issubclass(found, kind) for kind in kinds)


def check_app(app: object) -> None:
    """Raises ``TypeError`` for what is no ASGI app, as far as it can be seen: a WSGI app takes two arguments."""
    check_callable("app", app, "an ASGI app")
    try:
        parameters = inspect.signature(app).parameters.values()  # type: ignore[arg-type]  # it can be called
    except (TypeError, ValueError):  # written in C, say
        return
    by_place = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    takes_more = any(each.kind is each.VAR_POSITIONAL for each in parameters)
    if len(by_place) == 2 and not takes_more and not is_async(app):
        raise TypeError("app is a WSGI app (Flask, Django's wsgi.py): give its ASGI form, by a2wsgi's WSGIMiddleware")


def check_function(name: str, value: object, example: str) -> None:
    """Raises ``TypeError`` where the argument ``name`` is neither ``None`` nor a function that can be called without awaiting."""
    check_callable(name, value, example, optional=True)
    if is_async(value):
        raise TypeError(f"{name} is a coroutine function: give {example}, which awaits nothing")


def check_watch(watch: object) -> None:
    """Raises ``TypeError`` for what is no `oncegate.middleware.admission.observe.Watch`, nor does what one does."""
    if watch is not None and (isinstance(watch, type) or not hasattr(watch, "attempt_began")):
        raise TypeError(f"watch is {_named(watch)}: give an object of a subclass of Watch")


def _named(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__qualname__}"


def is_async(function: object) -> bool:
    """Whether a call of it gives a coroutine; of an object that can be called, too."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - the method itself
    )
