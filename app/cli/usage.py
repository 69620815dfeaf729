"""How commands end that can't do what they are to, and the settings of those that need the gateway's Redis."""

import getpass
import logging
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    from oncegate.app.operators.audit import Author
    from oncegate.app.settings.gateway import GatewaySettings


_MOST_NAME = 64


def end(line: str, code: int = 2) -> NoReturn:
    """End with one line on standard error; 2 is the exit code for wrong usage or configuration."""
    click.echo(f"oncegate: {line}", err=True)
    sys.exit(code)


def author(reason: str = "") -> "Author":
    """Of what this process changes: the account that runs it, as user@host, and the ``reason`` that was given."""
    from oncegate.app.operators.audit import Author

    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # no entry for the user's id, as in a container
        user = str(os.getuid())
    return Author(f"{user}@{socket.gethostname()}"[:_MOST_NAME], reason)


def audit(what: str, done: str, reason: str = "") -> None:
    """Write the audit line about ``what`` was ``done`` to on standard error: no gateway does it here."""
    from oncegate.app.cli.terminal import plain
    from oncegate.app.operators.audit import log

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    log.addHandler(handler)
    author(reason).report(plain(what), done)
    log.removeHandler(handler)


def _checked_reason(_: click.Context, __: click.Parameter, reason: str) -> str:
    """A ``--reason`` as it can be kept. Ends the process for another one."""
    from oncegate.app.operators.audit import MOST_REASON, REASON

    if len(reason) > MOST_REASON or not REASON.fullmatch(reason):
        end(f"--reason is one line of at most {MOST_REASON} characters")
    return reason


reason = click.option(
    "--reason", default="", metavar="TEXT", callback=_checked_reason, help="Why; kept and logged with your name."
)
"""The option of whatever an operator changes."""
reason_needed = click.option(
    "--reason", required=True, metavar="TEXT", callback=_checked_reason, help="Why; logged with your name."
)
"""Of what can't be undone."""


def redis_settings(
    given: dict[str, str | None], worker: dict[str, str | None], config: str | None, *, needed: str
) -> "GatewaySettings":
    """The settings, where their cache is a Redis; ``needed`` says for what. ``worker`` are those of its table."""
    from oncegate.cache.redis.url import REDIS_SCHEMES

    arguments: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    arguments["worker"] = {name: value for name, value in worker.items() if value is not None}
    settings = settings_of(arguments, config)
    if settings.cache_scheme not in REDIS_SCHEMES:
        end(f"cache: {needed} the Redis that the gateway uses: give --cache redis://host:6379/0, or --config FILE")
    return settings


def settings_of(arguments: dict[str, Any], config: str | None) -> "GatewaySettings":
    """The settings of a command that forwards nothing. Ends the process where they can't be used."""
    from oncegate.app.settings.sources import ConfigurationError, load

    try:
        return load(arguments, config, defaults={"upstream": "http://localhost"})
    except ConfigurationError as error:
        end(str(error))


@contextmanager
def one_line() -> Iterator[None]:
    """Ends with one line where SQLAlchemy is missing, or a database refuses."""
    try:
        from oncegate.sql.database.access import NotDone
    except ImportError as missing:
        end(str(missing))
    try:
        yield
    except NotDone as error:
        end(str(error), 2 if error.usage else 1)
