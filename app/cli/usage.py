"""What commands share: options, the settings that these give, and how a command runs and ends."""

import logging
import sys
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from oncegate.cache.redis.url import REDIS_SCHEMES

if TYPE_CHECKING:
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
    from oncegate.app.settings.sources import load

    tables = {} if worker is None else {"worker": without_none(worker)}
    return load(without_none(given) | tables, config, defaults={"upstream": "http://localhost"})


def without_none(options: dict[str, Any]) -> dict[str, Any]:
    """Those of ``options`` that were given."""
    return {name: value for name, value in options.items() if value is not None}


def run_quietly(command: Coroutine[Any, Any, Result]) -> Result:
    """The result of a command whose errors are printed once, at its end: warnings are for the log of a gateway or a worker."""
    import asyncio

    logging.getLogger("oncegate").addHandler(logging.NullHandler())
    return asyncio.run(command)
