"""The settings in effect, one by one, and where the value of each came from. What may be a secret is left out."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel

from oncegate.app.settings.gateway import GatewaySettings, redact
from oncegate.app.settings.loading.origins import Origins, Where
from oncegate.middleware.rules.settings import IdempotencySettings, Route

DEFAULT: Final = "default"
BY_PROGRAM: Final = "the program that made them"
_URLS: Final = ("upstream", "cache", "jwks", "forward")
"""Settings that are URLs: shown without what may be a credential in them."""
_HAS_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: the way to it, its value, and its ``source``. With ``left_out`` it is set, and its value is not shown."""

    where: Where
    value: Any
    source: str
    left_out: bool = False

    def as_json(self) -> dict[str, Any]:
        """It as JSON has it."""
        name = ".".join(map(str, self.where))
        return {"name": name, "value": self.value, "source": self.source, "secret": self.left_out}


def effective(settings: GatewaySettings) -> Iterator[Setting]:
    """All settings, in the order of the documentation; of a route those that it was given."""
    yield from _of(settings, (), settings.origins)


def listing(settings: GatewaySettings) -> list[dict[str, Any]]:
    """The same as JSON has them."""
    return [each.as_json() for each in effective(settings)]


def _of(model: BaseModel, where: Where, origins: Origins | None) -> Iterator[Setting]:
    tables = []
    fields = type(model).model_fields
    for name in sorted(fields, key=lambda each: each != "path"):  # a route begins with it
        field = fields[name]
        value, way = getattr(model, name), (*where, name)
        if isinstance(model, Route) and name not in model.model_fields_set:
            continue
        if isinstance(value, BaseModel) or (isinstance(value, tuple) and value and isinstance(value[0], BaseModel)):
            tables.append((way, value))
            continue
        source = None if origins is None else origins.of(way)
        if origins is None and name in model.model_fields_set:
            source = BY_PROGRAM
        if source is None:
            source = _instead(way, model, origins)
        is_secret = not field.repr and bool(value) and name not in _URLS
        shown = None if is_secret else _shown(name, value)
        if isinstance(value, str) and shown is not None and shown != value:
            source += " (credentials and options left out)"
        yield Setting(way, shown, source, left_out=is_secret)
    for way, value in tables:  # behind what stands without a table, as a file has them
        for index, each in enumerate(value if isinstance(value, tuple) else ()):
            yield from _of(each, (*way, index), origins)
        if isinstance(value, BaseModel):
            yield from _of(value, way, origins)


def _instead(where: Where, model: BaseModel, origins: Origins | None) -> str:
    """The source of a value that was not given: of its file, or by another setting."""
    file = None if origins is None else origins.of((f"{where[-1]}_file",))
    if len(where) == 1 and file is not None:
        return f"{where[-1]}_file ({file})"
    if where[-1] == "docs_url" and isinstance(model, IdempotencySettings) and model.docs_url:
        return "default, by prefix"
    return DEFAULT


def _shown(name: str, value: Any) -> Any:
    if name in _URLS and isinstance(value, str) and _HAS_SCHEME.match(value):
        return redact(value)
    if isinstance(value, Mapping):
        return {str(each): inner for each, inner in value.items()}  # as JSON has them
    return list(value) if isinstance(value, tuple) else value


def as_toml(found: Iterator[Setting]) -> str:
    """The settings as a file has them, each with its source in a comment; what is not shown, or not set, is a comment itself."""
    lines: list[str] = []
    head: Where = ()
    for each in found:
        table = each.where[:-1]
        if table != head:
            head = table
            lines += ["", f"[[{table[0]}]]" if len(table) == 2 else f"[{'.'.join(map(str, table))}]"]
        name = str(each.where[-1])
        if each.left_out:
            text = f"# {name} is set, and left out"
        elif each.value is None:
            text = f"# {name} is not set"
        else:
            text = f"{name} = {_value(each.value)}"
        lines.append(f"{text:<44}  # {each.source}")
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_text(str(name))} = {_value(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.15g}"
    return _text(value) if isinstance(value, str) else str(value)


def _text(value: str) -> str:
    """A TOML string: a basic one, in which control characters, quotes and backslashes are escaped."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(f"\\u{ord(c):04x}" if ord(c) < 0x20 or ord(c) == 0x7F else c for c in escaped) + '"'
