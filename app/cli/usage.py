"""Options that commands share, the settings that these give, and how a command runs and ends."""

import logging
import re
import shlex
import sys
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click
from click.core import ParameterSource

from oncegate.cache.redis.url import REDIS_SCHEMES

if TYPE_CHECKING:
    from oncegate.app.operators.pages.client import RemoteGateway
    from oncegate.app.settings.gateway import GatewaySettings

Result = TypeVar("Result")


def end(line: str, code: int = 2) -> NoReturn:
    """End with one line on standard error; 2 is the exit code for wrong usage or configuration."""
    click.echo(f"oncegate: {line}", err=True)
    sys.exit(code)


config_file = click.option("--config", metavar="FILE", help="The gateway's TOML file (or ONCEGATE_CONFIG).")
json_output = click.option("--json", "as_json", is_flag=True, help="One JSON document, for scripts.")
redis = click.option("--cache", metavar="URL", help="The Redis that the gateway uses.")
namespace = click.option("--namespace", metavar="NAME", help="The gateway's namespace (default: default).")


_PLACES = ("config", "gateway", "cache", "namespace", "stream", "consumer", "database", "schema")
"""Options that say where to look."""
_COMMAND = re.compile(r"(oncegate [a-z -]*[a-z]) --database URL(?: --schema (?:'[^']*'|\S+))?")
_PASSWORD = re.compile(r"(?<=://)([^/@:?]*):[^/@]*@")


def to_paste(command: str) -> str:
    """``command`` with those options of this one that say where to look, as far as it takes them: it can be pasted as it is.

    A password is not repeated. What came from the environment is there for the next command, too.
    """
    context = click.get_current_context(silent=True)
    if context is None:
        return command
    found: click.Command | None = context.find_root().command
    for word in command.split()[1:]:
        if isinstance(found, click.Group):
            found = found.get_command(context, word)
    takes = {option.name for option in found.params} if found is not None else set()
    for name in _PLACES:
        if name in takes and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            shown = _PASSWORD.sub(r"\1:***@", context.params[name])
            command += f" --{name} {shlex.quote(shown)}"
    return command


def with_place(text: str) -> str:
    """``text``, in which commands about a database have ``--database URL``, with the database that this command was given."""
    return _COMMAND.sub(lambda found: to_paste(found[1]), text)


def redis_settings(
    given: dict[str, str | None], worker: dict[str, str | None], config: str | None, *, needed: str
) -> "GatewaySettings":
    """The settings, where their cache is a Redis; ``needed`` says for what. ``worker`` are those of its table."""
    settings = settings_of(given, config, worker)
    if settings.cache_scheme not in REDIS_SCHEMES:
        end(f"cache: {needed} the Redis that the gateway uses: give --cache redis://host:6379/0, or --config FILE")
    return settings


def settings_of(
    given: dict[str, str | None], config: str | None, worker: dict[str, str | None] | None = None
) -> "GatewaySettings":
    """The settings of a command that forwards nothing, so that no upstream has to be named. Raises `ConfigurationError`."""
    from oncegate.app.settings.loading.sources import load

    tables = {} if worker is None else {"worker": without_none(worker)}
    return load(without_none(given) | tables, config, defaults={"upstream": "http://localhost"})


def remote_gateway(url: str) -> "RemoteGateway":
    """The gateway at ``url``, for an operator. Ends the process without a token, or for what is no URL."""
    from oncegate.app.operators.pages.client import RemoteGateway
    from oncegate.app.settings.loading.sources import admin_token

    token = admin_token()
    if token is None:
        end("ONCEGATE_ADMIN_TOKEN is not set: it is the gateway's token for operators")
    try:
        return RemoteGateway(url, token)
    except ValueError as error:
        end(str(error))


def without_none(options: dict[str, Any]) -> dict[str, Any]:
    """The members of ``options`` that were given."""
    return {name: value for name, value in options.items() if value is not None}


def run_quietly(command: Coroutine[Any, Any, Result]) -> Result:
    """The result of a command whose errors are printed once, at its end: warnings are for the log of a gateway or a worker."""
    import asyncio

    logging.getLogger("oncegate").addHandler(logging.NullHandler())
    return asyncio.run(command)
