"""The one line that a wrong setting gets: its name, where it was given, and what to do. It never repeats a value."""

import difflib
import re
from collections.abc import Iterable
from typing import Final

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from oncegate.app.settings.cors import CorsSettings
from oncegate.app.settings.gateway import GatewaySettings
from oncegate.app.settings.loading.origins import PREFIX, Origins
from oncegate.app.settings.worker import WorkerSettings
from oncegate.middleware.rules.settings import IdempotencySettings, Route
from oncegate.middleware.rules.strict_settings import nearest
from oncegate.middleware.tokens.settings import JwtSettings

TABLES: dict[str, type[BaseModel]] = {
    "idempotency": IdempotencySettings,
    "cors": CorsSettings,
    "jwt": JwtSettings,
    "worker": WorkerSettings,
}
"""The tables of the file that are settings of their own."""
_PLACES: Final[dict[str, type[BaseModel]]] = {"": GatewaySettings, **TABLES, "routes": Route}
"""All places of the file, by their names."""
_TABLE_NAMES: Final = ", ".join(f"[{name}]" for name in TABLES) + " and [[routes]]"

_WORDS: Final = {
    "missing": "is missing",
    "int_parsing": "must be a whole number, without a unit",
    "int_type": "must be a whole number, without a unit",
    "int_from_float": "must be a whole number",
    "int_parsing_size": "must be a smaller number",
    "float_parsing": "must be a number, without a unit",
    "float_type": "must be a number, without a unit",
    "finite_number": "must be a finite number",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "string_type": "must be a text, in quotes",
    "string_too_short": "must not be empty",
    "too_short": "must have one item at least",
    "tuple_type": 'must be a list: ["one", "two"]',
    "list_type": 'must be a list: ["one", "two"]',
    "dict_type": "must be a table",
    "model_type": "must be a table",
    "model_attributes_type": "must be a table",
}
"""The words in the place of pydantic's, by the types of its errors."""
_OF_ALL_ROUTES: Final = {
    "tuple_type": "is a list of tables: write [[routes]], with two brackets, before each of them",
    "model_type": "must be a table, [[routes]], with a path",
    "model_attributes_type": "must be a table, [[routes]], with a path",
}
_NAMED: Final = re.compile(r"([a-z_]+(?:\.[a-z0-9_]+)*): (.*)", re.DOTALL)
"""A message about settings together names the one that it is about."""
_A_KIND: Final = re.compile(r"\[key\]|str|.*[\[(].*")
"""Words that pydantic adds to the way to a value where a setting takes several kinds."""


def line_of(error: ValidationError, origins: Origins) -> str:
    """The line about the first fault, and how many settings have others."""
    first, *rest = error.errors(include_url=False)
    where = _way(first)
    message = _message(first, where)
    others = {way for way in map(_way, rest) if way != where[: len(way)]}  # not what it stands in, which is wrong by it
    if first["type"] == "value_error" and (named := _NAMED.fullmatch(message)):
        where, message = (*where, *_parts(named[1])), named[2]
    source = origins.of(where)
    if source is None and first["type"] == "missing":
        source = origins.of(where[:-1]) if len(where) > 1 else None
    name = ".".join(map(str, where))
    line = f"{name} ({source}): {message}" if source else f"{name}: {message}"
    return f"{line} (and {len(others)} more)" if others else line


def _way(fault: ErrorDetails) -> tuple[str | int, ...]:
    return tuple(part for part in fault["loc"] if isinstance(part, int) or not _A_KIND.fullmatch(part))


def _parts(name: str) -> Iterable[str | int]:
    return (int(part) if part.isdigit() else part for part in name.split("."))


def _message(fault: ErrorDetails, where: tuple[str | int, ...]) -> str:
    kind = fault["type"]
    if kind == "missing" and where == ("upstream",):
        return "is missing: give --upstream URL, set ONCEGATE_UPSTREAM, or upstream in the --config file"
    if kind == "unknown_setting":
        return unknown_setting(where, is_table=isinstance(fault["input"], dict))
    words = _OF_ALL_ROUTES.get(kind) if where[:1] == ("routes",) and len(where) < 3 else None
    if words is not None:
        return words
    if kind in ("model_type", "model_attributes_type", "dict_type") and len(where) == 1:
        return f"must be a table: [{where[0]}]"
    message = fault["msg"].removeprefix("Value error, ").replace("Input should", "must")
    return _WORDS.get(kind, message.replace("String should", "must"))


def unknown_setting(where: tuple[str | int, ...], *, is_table: bool = False) -> str:
    """The advice about a name that is no setting's in its place: it may be one elsewhere, or nearly one."""
    place, name = ("routes" if where[0] == "routes" else str(where[0]) if len(where) > 1 else ""), str(where[-1])
    if is_table and name not in Route.model_fields:
        return _unknown_table(place, name)
    homes = [_in_words(each) for each in _homes(name) if each != place]
    if homes:
        return f"is no setting here: it belongs {' or '.join(homes)}"
    plain, here = _plain(name), _PLACES.get(place, GatewaySettings).model_fields
    close = nearest(plain, (each for each in here if each not in _PLACES))
    if close:
        return f"unknown setting{close}"
    for home, model in _PLACES.items():
        found = difflib.get_close_matches(plain, model.model_fields, n=1, cutoff=0.8)
        if found:
            return f"unknown setting, did you mean {found[0]}, which belongs {_in_words(home)}?"
    return "unknown setting; remove it"


def _unknown_table(place: str, name: str) -> str:
    if place == "routes":
        return "is no table of a route's: a route's rules stand in the route itself"
    close = nearest(_plain(name), (*TABLES, "routes"))
    if close:
        found = close.removeprefix(", did you mean ").removesuffix("?")
        return f"unknown table, did you mean {'[[routes]]' if found == 'routes' else f'[{found}]'}?"
    flat = [each for each in GatewaySettings.model_fields if each.startswith(f"{_plain(name)}_")]
    if flat and not place:
        return f"unknown table: {', '.join(flat)} stand at the top of the file, without one"
    return f"unknown table: there are {_TABLE_NAMES}"


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


def _homes(name: str) -> list[str]:
    """The places that have a setting of this name. A route may have all of [idempotency]: that is said of the table."""
    found = [place for place, model in _PLACES.items() if name in model.model_fields]
    return [place for place in found if place != "routes" or "idempotency" not in found]


def _in_words(place: str) -> str:
    if not place:
        return "to the top of the file, before the first table"
    return f"into [[{place}]]" if place == "routes" else f"into [{place}]"


def unknown_variable(name: str) -> str:
    """The line about a variable of ours that is no setting's."""
    plain = name.upper().removeprefix(PREFIX).lower()
    last = plain.rpartition("__")[2]
    variables = [*GatewaySettings.model_fields]
    variables += [f"{table}__{field}" for table, model in TABLES.items() for field in model.model_fields]
    close = [each for each in variables if each.rpartition("__")[2] == last]
    if not close and last in Route.model_fields:
        return f"{name} (environment): is a route's: routes are given as JSON, in ONCEGATE_ROUTES; unset it"
    close = close or difflib.get_close_matches(plain, variables, n=1)
    hint = f", did you mean {' or '.join(PREFIX + each.upper() for each in close)}?" if close else ""
    return f"{name} (environment): unknown setting{hint}; unset it"
