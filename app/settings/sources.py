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

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, EnvSettingsSource

from oncegate.app.settings.cors import CorsSettings
from oncegate.app.settings.gateway import GatewaySettings
from oncegate.app.settings.worker import WorkerSettings
from oncegate.middleware.rules.settings import IdempotencySettings, nearest
from oncegate.middleware.tokens.settings import JwtSettings

PREFIX = "ONCEGATE_"
_OF_DATABASES = {f"ONCEGATE_{name}_DATABASE" for name in ("INBOX", "OUTBOX", "PROJECTIONS")}
_OF_BUILDS = {"ONCEGATE_COMPILED", "ONCEGATE_COMMIT"}
NOT_SETTINGS = {"ONCEGATE_CONFIG", "ONCEGATE_ADMIN_TOKEN", *_OF_DATABASES, *_OF_BUILDS}
"""Variables that are ours without being a setting of the file: where the file is, a secret that no file should hold, options
of single commands, and what a build is made by, which an image may still have set."""
TABLES: dict[str, type[BaseModel]] = {
    "idempotency": IdempotencySettings,
    "worker": WorkerSettings,
    "cors": CorsSettings,
    "jwt": JwtSettings,
}
"""The tables of the file that are settings of their own."""

_SECRET = ("secret", "encryption_keys")
"""Settings that stand in no file, but in the environment, or in a file of their own."""
_FILES = {"secret_file": "secret", "encryption_keys_file": "encryption_keys"}
"""Settings that name such a file, and the one that gets its lines, and is not given besides."""
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
    """The settings in force. ``arguments`` are those given on the command line, by the settings' names; ``config`` its file.

    ``defaults`` stand in for what isn't given, for commands that need less than the gateway does.
    Raises `ConfigurationError`.
    """
    config = config or os.environ.get("ONCEGATE_CONFIG") or None
    from_file = _read_file(config) if config else {}
    from_environment = _read_environment()
    merged = _over(_over(_over(defaults or {}, from_file), from_environment), arguments)
    _read_files(merged)
    try:
        return GatewaySettings(**merged)
    except ValidationError as error:
        sources = {"command line": arguments, "environment": from_environment, str(config): from_file}
        raise ConfigurationError(_one_line(error, sources)) from None


def _read_file(config: str) -> dict[str, Any]:
    try:
        data = tomllib.loads(Path(config).read_text("utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{config}: can't be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        place = re.search(r"\(at .*\)$", str(error))  # the rest of its text may repeat what the file holds
        raise ConfigurationError(f"{config}: is not valid TOML {place[0] if place else ''}".rstrip()) from None
    for name in _SECRET:
        given = data.get(name)
        for value in given if isinstance(given, list) else [given]:
            if isinstance(value, str) and value not in ("", "none") and not _VARIABLE.search(value):
                raise ConfigurationError(
                    f"{config}: {name}: is not to be in a file; name a variable, ${{ONCEGATE_SECRET}}"
                )
    expanded: dict[str, Any] = _expand(data, config, "")
    return expanded


def _read_files(merged: dict[str, Any]) -> None:
    """Put what stands in files of its own, a line each, in the place of the settings that these files stand for."""
    for name, other in _FILES.items():
        if not merged.get(name):
            continue
        if merged.get(other):
            raise ConfigurationError(f"{name}: excludes {other}")
        try:
            lines = Path(str(merged[name])).read_text("utf-8").split()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{name}: can't be read: {getattr(error, 'strerror', 'no UTF-8')}") from None
        if not lines:
            raise ConfigurationError(f"{name}: is empty")
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
            message = 'a list or table is written as JSON: ["one", "two"]'
            raise ConfigurationError(f"{field_name} (environment): {message}") from None


def _check_known(name: str) -> None:
    setting, *nested = name.upper().removeprefix(PREFIX).lower().split("__")
    known = setting in GatewaySettings.model_fields
    if nested:
        known = setting in TABLES and len(nested) == 1 and nested[0] in TABLES[setting].model_fields
    if not known:
        variables = [PREFIX + field.upper() for field in GatewaySettings.model_fields]
        for table, model in TABLES.items():
            variables += [f"{PREFIX}{table.upper()}__{field.upper()}" for field in model.model_fields]
        raise ConfigurationError(f"{name} (environment): unknown setting{nearest(name.upper(), variables)}; unset it")


def _over(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """``upper`` laid over ``lower``, table by table."""
    merged = dict(lower)
    for name, value in upper.items():
        below = merged.get(name)
        merged[name] = _over(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _one_line(error: ValidationError, sources: Mapping[str, Mapping[str, Any]]) -> str:
    first, *rest = error.errors(include_input=False, include_url=False)
    name = ".".join(str(part) for part in first["loc"])
    message = _explain(first)
    if not name:  # a check across settings names its own
        name, _, message = message.partition(": ")
    source = next(
        (source for source, values in sources.items() if _holds(values, first["loc"] or name.split("."))), None
    )
    line = f"{name} ({source}): {message}" if source else f"{name}: {message}"
    return f"{line} (and {len(rest)} more)" if rest else line


def _explain(fault: ErrorDetails) -> str:
    loc = fault["loc"] or ("",)
    if fault["type"] == "missing":
        if loc == ("upstream",):
            return "is missing: give --upstream URL, set ONCEGATE_UPSTREAM, or upstream in the --config file"
        return "is missing"
    if fault["type"] == "unknown_setting":
        return f"{fault['msg']}; remove it"
    message = fault["msg"].replace("Value error, ", "").replace("Input should", "must")
    return message.replace("String should", "must")


def _holds(values: Any, loc: Any) -> bool:
    """Whether ``values`` has something where ``loc`` points."""
    for part in loc:
        if isinstance(values, Mapping) and part in values:
            values = values[part]
        elif isinstance(values, list) and str(part).isdigit() and int(part) < len(values):
            values = values[int(part)]
        else:
            return False
    return True
