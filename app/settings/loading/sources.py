"""Loads settings: command line > environment > TOML file > defaults; a fault is one line.

Every fault becomes a `ConfigurationError` whose text names the setting and where it was given, says what to do, and
never repeats a value: a value may be a secret.
"""

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource

from oncegate.app.settings.gateway import GatewaySettings
from oncegate.app.settings.loading.faults import TABLES, line_of, unknown_variable
from oncegate.app.settings.loading.origins import PREFIX, Origins

_OF_DATABASES = {f"ONCEGATE_{name}_DATABASE" for name in ("INBOX", "OUTBOX", "PROJECTIONS")}
_OF_BUILDS = {"ONCEGATE_COMPILED", "ONCEGATE_COMMIT"}
NOT_SETTINGS = {"ONCEGATE_CONFIG", "ONCEGATE_ADMIN_TOKEN", *_OF_DATABASES, *_OF_BUILDS}
"""Variables that are ours without being a setting of the file: where the file is, a secret that no file should hold, options
of single commands, and what a build is made by, which an image may still have set."""
_SECRET = ("secret", "encryption_keys")
"""Settings that stand in no file, but in the environment, or in a file of their own."""
_FILES = {"secret_file": "secret", "encryption_keys_file": "encryption_keys"}
"""Settings that name such a file, and the one that gets its lines, and is not given besides."""
_NOT_TOML = {"Cannot overwrite": ": a name is there twice", "Cannot declare": ": a table is there twice"}
"""The words about a file that can't be parsed, by how the parser's own begin."""
_LISTS = {
    "": 'a list is written as JSON: ["one", "two"]',
    "routes": 'routes are written as JSON: [{"path": "/payments/*"}]',
}
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class ConfigurationError(Exception):
    """The configuration can't be used. The text is one line for the operator."""


SHORTEST_TOKEN: Final = 16
"""Characters: a gateway takes no shorter one, since it opens every record."""


def gateway_admin_token() -> str | None:
    """`admin_token`, of a gateway that lets its bearer in. Raises `ConfigurationError` for one that could be guessed, too."""
    token = admin_token()
    if token is not None and len(token) < SHORTEST_TOKEN:
        raise ConfigurationError(
            f"ONCEGATE_ADMIN_TOKEN is shorter than {SHORTEST_TOKEN} characters, and opens every record: one that nobody"
            " guesses is the first line of: oncegate token NAME"
        )
    return token


def admin_token() -> str | None:
    """The operators' token, ``None`` without one. It comes from the environment alone, not from a file or the command line.

    White space around it is not part of it: files and mounted secrets end with a line break. Raises `ConfigurationError`.
    """
    token = os.environ.get("ONCEGATE_ADMIN_TOKEN", "").strip()
    if any(character < " " or character == "\x7f" for character in token):
        raise ConfigurationError("ONCEGATE_ADMIN_TOKEN holds a control character: no header can carry it")
    return token or None


def load(
    arguments: Mapping[str, object], config: str | None = None, *, defaults: Mapping[str, object] | None = None
) -> GatewaySettings:
    """The settings in force, with their origins. ``arguments`` are those given on the command line, by the settings' names;
    ``config`` its file.

    ``defaults`` stand in for what isn't given, for commands that need less than the gateway does.
    Raises `ConfigurationError`.
    """
    config = config or os.environ.get("ONCEGATE_CONFIG") or None
    text, from_file = _read_file(config) if config else ("", {})
    from_environment = _read_environment()
    origins = Origins(arguments, from_environment, from_file, config, text)
    merged = _over(_over(_over(defaults or {}, from_file), from_environment), arguments)
    _read_files(merged, origins)
    try:
        return GatewaySettings(**merged).come_from(origins)
    except ValidationError as error:
        raise ConfigurationError(line_of(error, origins)) from None


def _read_file(config: str) -> tuple[str, dict[str, Any]]:
    """The file's text, and what it says."""
    try:
        text = Path(config).read_text("utf-8")
        data = tomllib.loads(text)
    except OSError as error:
        raise ConfigurationError(f"{config}: can't be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        place = re.search(r"\(at .*\)$", str(error))  # the rest of its text may repeat what the file holds
        what = next((words for start, words in _NOT_TOML.items() if str(error).startswith(start)), "")
        raise ConfigurationError(f"{config}: is not valid TOML{what} {place[0] if place else ''}".rstrip()) from None
    for name in _SECRET:
        given = data.get(name)
        for value in given if isinstance(given, list) else [given]:
            if isinstance(value, str) and value not in ("", "none") and not _VARIABLE.search(value):
                variable = f"{PREFIX}{name.upper()}"
                raise ConfigurationError(
                    f"{config}: {name}: is not to be in a file of settings: set {variable} or {name}_file, "
                    "or name a variable here, ${NAME}"
                )
    expanded: dict[str, Any] = _expand(data, config, "")
    return text, expanded


def _read_files(merged: dict[str, Any], origins: Origins) -> None:
    """Put what stands in files of its own, a line each, in the place of the settings that these files stand for."""
    for name, other in _FILES.items():
        if not merged.get(name):
            continue
        where = f"{name} ({origins.of((name,))})"
        if merged.get(other):
            raise ConfigurationError(f"{where}: excludes {other} ({origins.of((other,))}): give one of them")
        try:
            lines = Path(str(merged[name])).read_text("utf-8").split()
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{where}: can't be read: {getattr(error, 'strerror', 'no UTF-8')}") from None
        if not lines:
            raise ConfigurationError(f"{where}: names a file that is empty")
        merged[other] = lines


def _expand(value: Any, config: str, where: str) -> Any:
    """``value`` with each ``${NAME}`` in a string replaced by that environment variable."""
    if isinstance(value, dict):
        return {name: _expand(inner, config, f"{where}.{name}".lstrip(".")) for name, inner in value.items()}
    if isinstance(value, list):
        return [_expand(inner, config, f"{where}.{index}") for index, inner in enumerate(value)]
    if not isinstance(value, str):
        return value

    def lookup(match: re.Match[str]) -> str:
        found = os.environ.get(match[1])
        if found is None:
            raise ConfigurationError(f"{config}: {where}: the environment variable {match[1]} is not set")
        return found

    return _VARIABLE.sub(lookup, value)


def _read_environment() -> dict[str, Any]:
    for name in os.environ:
        if name.upper().startswith(PREFIX) and name.upper() not in NOT_SETTINGS:
            _check_known(name)
    return _Environment(_Variables, env_prefix=PREFIX, env_nested_delimiter="__")()


class _Variables(GatewaySettings, BaseSettings):  # type: ignore[misc]  # pydantic merges the two of model_config
    """The settings as pydantic-settings takes them: it reads the environment into no other kind of class."""


class _Environment(EnvSettingsSource):
    """pydantic-settings' reading of the environment, with an error of ours for a list that isn't JSON."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        if field_name == "secret" and not value.startswith("["):
            return value
        try:
            return super().decode_complex_value(field_name, field, value)
        except ValueError:
            is_table = field_name in TABLES or field_name == "forward_headers"
            form = 'a table is written as JSON: {"name": "value"}' if is_table else _LISTS.get(field_name, _LISTS[""])
            raise ConfigurationError(f"{_variable_of(field_name, value)} (environment): {form}") from None


def _variable_of(field_name: str, value: str) -> str:
    """The variable that has ``value`` for a field, which may be one of a table."""
    ours = [name for name, given in os.environ.items() if name.upper().startswith(PREFIX) and given == value]
    return next((name for name in ours if name.lower().endswith(field_name)), field_name)


def _check_known(name: str) -> None:
    setting, *nested = name.upper().removeprefix(PREFIX).lower().split("__")
    known = setting in GatewaySettings.model_fields
    if nested:
        known = setting in TABLES and len(nested) == 1 and nested[0] in TABLES[setting].model_fields
    if not known:
        raise ConfigurationError(unknown_variable(name))


def _over(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """``upper`` laid over ``lower``, table by table."""
    merged = dict(lower)
    for name, value in upper.items():
        below = merged.get(name)
        merged[name] = _over(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged
