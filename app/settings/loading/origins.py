"""Where each setting's value came from: the command line, a variable of the environment, a line of the file."""

import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any

Where = tuple[str | int, ...]
"""The way to a value: ``("routes", 0, "path")``."""
PREFIX = "ONCEGATE_"
"""The beginning of variables' names."""


class Origins:
    """The origins of the values that were given. ``config`` is the file's name, ``text`` what is in it."""

    def __init__(
        self,
        arguments: Mapping[str, object],
        environment: Mapping[str, object],
        file: Mapping[str, object],
        config: str | None = None,
        text: str = "",
    ) -> None:
        self._arguments = arguments
        self._environment = environment
        self._file = file
        self._config = config
        self._lines = lines_of(text)
        self._kept: dict[str | int, Origins] = {}

    def __eq__(self, other: object) -> bool:
        """Always: where values came from makes no difference between settings."""
        return True

    __hash__ = None  # type: ignore[assignment]  # nothing is looked up by them

    def keeping(self, names: Iterable[str], before: "Origins") -> "Origins":
        """These, but for the settings ``names`` as ``before`` has them: they keep their former values."""
        made = copy(self)
        made._kept = {name: before._kept.get(name, before) for name in names}
        return made

    def of(self, where: Sequence[str | int]) -> str | None:
        """Where the value of a setting is from, by the way to it; ``None`` where it was not given."""
        if where[0] in self._kept:
            return self._kept[where[0]].of(where)
        if is_given(self._arguments, where):
            return "command line"
        if is_given(self._environment, where):
            return _variable(where) or "environment"
        if is_given(self._file, where):
            line = self._lines.get(tuple(where)) or self._line_around(where)
            return f"{self._config}, line {line}" if line else self._config
        return None

    def _line_around(self, where: Sequence[str | int]) -> int | None:
        """The line of what a value stands in: of its list, of its table's head."""
        ways = (tuple(where[:length]) for length in range(len(where) - 1, 0, -1))
        return next((self._lines[way] for way in ways if way in self._lines), None)


def is_given(values: Any, where: Sequence[str | int]) -> bool:
    """Whether ``values`` have something there."""
    for part in where:
        if isinstance(values, Mapping) and part in values:
            values = values[part]
        elif isinstance(values, list | tuple) and str(part).isdigit() and int(part) < len(values):
            values = values[int(part)]
        else:
            return False
    return True


def _variable(where: Sequence[str | int]) -> str | None:
    """The variable that gives a value: its own, or one that has its list or table as JSON."""
    names = {name.upper(): name for name in os.environ}
    for length in range(len(where), 0, -1):
        name = PREFIX + "__".join(map(str, where[:length])).upper()
        if name in names:
            return names[name]
    return None


def lines_of(text: str) -> dict[Where, int]:
    """The line on which each setting of a TOML file begins, and each table's head, by the way to it.

    Each statement is read by itself, which may take several lines; a text that is not TOML as a whole has lines up to its
    fault.
    """
    found: dict[Where, int] = {}
    table: Where = ()
    counts: dict[Where, int] = {}
    for line, statement in _statements(text):
        head = statement.lstrip()
        parsed = tomllib.loads(statement)
        if head.startswith("["):
            table = _table(next(_ways(parsed)), counts, is_array=head.startswith("[["))
            found.setdefault(table, line)
            continue
        for way in _ways(parsed):
            for length in range(1, len(way) + 1):
                found.setdefault(table + way[:length], line)
    return found


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """The statements of a TOML text, each with the number of its first line."""
    begin, held = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        if not held and not line.partition("#")[0].strip():
            continue
        begin = begin if held else number
        held += line + "\n"
        try:
            tomllib.loads(held)
        except tomllib.TOMLDecodeError:
            continue  # it goes on
        yield begin, held
        held = ""


def _ways(parsed: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """The ways to all values, and to empty tables."""
    for name, value in parsed.items():
        if isinstance(value, list) and value == [{}]:
            yield (name,)
        elif isinstance(value, dict) and value:
            yield from ((name, *rest) for rest in _ways(value))
        else:
            yield (name,)


def _table(names: tuple[str, ...], counts: dict[Where, int], *, is_array: bool) -> Where:
    """The way to the table that a head of these ``names`` opens. ``counts`` are the tables of each list so far."""
    way: Where = ()
    for index, name in enumerate(names):
        way = (*way, name)
        if is_array and index == len(names) - 1:
            counts[way] = counts.get(way, -1) + 1
        if way in counts:
            way = (*way, counts[way])
    return way
