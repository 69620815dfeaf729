"""Binds a decorated function's arguments, from which key, caller and payload are computed by parameter name."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from oncegate.middleware.rules.checks.arguments import check_callable

Choose = Callable[[dict[str, Any]], Any]
"""Computes a value from a call's arguments by name."""
_RECEIVERS = ("self", "cls")


class Signature:
    """A function's signature. ``name`` is its name in errors."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.name = f"{function.__qualname__}()"
        self._signature = inspect.signature(function)
        self._names = list(self._signature.parameters)

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Each parameter's value, with its default where it isn't given. Raises ``TypeError`` as the function would."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}: {error}") from None
        bound.apply_defaults()
        return bound.arguments

    def everything(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """All the arguments but ``self`` or ``cls``: whose method is called is not what it is called with."""
        first = self._names[:1]
        return {name: arguments[name] for name in self._names if not (first == [name] and name in _RECEIVERS)}

    def chosen(self, what: str, choose: object) -> Choose:
        """``choose``, a user's function of some of the parameters, as one of all the arguments.

        Raises ``TypeError`` where it asks for what the function doesn't have.
        """
        check_callable(what, choose, "a function of the arguments that it names")
        try:
            wanted = inspect.signature(choose).parameters.values()  # type: ignore[arg-type]  # callable, as just checked
        except (TypeError, ValueError):
            raise TypeError(f"{what} has no parameters to be read: give a lambda") from None
        rest = any(each.kind is each.VAR_KEYWORD for each in wanted)
        by_place = [each.name for each in wanted if each.kind is each.POSITIONAL_ONLY]
        by_name = [each for each in wanted if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
        requested = [each.name for each in by_name if each.name in self._names or each.default is each.empty]
        unknown = [name for name in (*by_place, *requested) if name not in self._names]
        if unknown or any(each.kind is each.VAR_POSITIONAL for each in wanted):
            raise TypeError(
                f"{what} takes {', '.join(unknown) or 'any number'}: name parameters of {self.name}, which are"
                f" {', '.join(self._names) or 'none'}"
            )
        named = [*requested, *(name for name in self._names if rest and name not in (*by_place, *requested))]

        def call(arguments: dict[str, Any]) -> Any:
            return choose(*(arguments[each] for each in by_place), **{each: arguments[each] for each in named})  # type: ignore[operator]  # see above

        return call


@dataclass
class FunctionCall:
    """One call of ``function``. ``payload`` is what of it is fingerprinted."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    payload: Any

    def make(self) -> Any:
        """Call the function, as its caller did."""
        return self.function(*self.args, **self.kwargs)
