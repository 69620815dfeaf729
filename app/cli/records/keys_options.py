"""Options of ``oncegate keys``: where the records are, and which of them are meant."""

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import wraps
from time import time
from typing import TYPE_CHECKING, Any

import click

from oncegate.app.cli.usage import config_file, end, json_output, remote_gateway, run_quietly, settings_of
from oncegate.cache.open import SHARED_SCHEMES
from oncegate.cache.redis.url import either

if TYPE_CHECKING:
    from oncegate.app.operators.pages.client import RemoteGateway
    from oncegate.app.operators.records.records import Records

    Source = Records | RemoteGateway

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

caller_option = click.option(
    "--caller", metavar="-", help="Whose: the caller's header lines are read from standard input."
)
listed_caller_option = click.option(
    "--caller",
    metavar="-|DIGEST",
    help="Whose: - reads the caller's header lines from standard input; a digest is what ids have behind the colon.",
)
route_option = click.option(
    "--route", metavar="PATTERN", help="Those of this route, spelled as in the configuration; * is the default one."
)
force_option = click.option("--force", is_flag=True, help="Also while the attempt is running. It runs on all the same.")
attempt_option = click.option("--attempt", type=click.IntRange(1), help="Only while this is the record's attempt.")


def with_records(
    command: Callable[..., Awaitable[None]], in_memory: str = "those of memory:// are in the gateway: --gateway URL"
) -> Callable[..., None]:
    """The options of every command: where the records are, and the output format.

    ``in_memory`` is the advice for records that are in no shared cache.
    """

    @click.option("--cache", metavar="URL", help=f"The shared cache: {either(SHARED_SCHEMES, ', ')}.")
    @click.option("--namespace", metavar="NAME", help="The namespace of the service (default: default).")
    @config_file
    @click.option("--gateway", metavar="URL", help="Ask this gateway instead; ONCEGATE_ADMIN_TOKEN is its token.")
    @json_output
    @wraps(command)
    def with_source(**options: Any) -> None:
        async def run() -> None:
            where = {name: options.pop(name) for name in ("cache", "namespace", "config", "gateway")}
            async with _source(**where, in_memory=in_memory) as source:
                await command(source=source, **options)

        run_quietly(run())

    return with_source


@asynccontextmanager
async def _source(
    cache: str | None, namespace: str | None, config: str | None, gateway: str | None, in_memory: str
) -> AsyncIterator["Source"]:
    if gateway is not None:
        if cache is not None or namespace is not None or config is not None:
            end("--gateway excludes --cache, --namespace and --config: the gateway knows its own")
        yield remote_gateway(gateway)
        return
    from oncegate.app.factory import create_cache
    from oncegate.app.operators_factory import create_records

    settings = settings_of({"cache": cache, "namespace": namespace}, config)
    if not settings.cache_is_shared:
        end(f"which records? Give --cache URL or --config FILE; {in_memory}")
    opened = create_cache(settings)
    try:
        yield create_records(settings, opened)
    finally:
        await opened.close()


def which_record(command: Callable[..., None]) -> Callable[..., None]:
    """Options that say which record: by key and caller, or by its id."""
    command = click.argument("key", required=False)(command)
    command = click.option("--record", metavar="ID", help="The record's id, as problems and logs carry it.")(command)
    return caller_option(command)


def ms_ago(age: str | None, option: str) -> int:
    """The Unix time (ms) that was so long ago; 0 where the ``option`` was not given."""
    return 0 if age is None else max(1, round(time() * 1000) - seconds_of(age, option) * 1000)


def seconds_of(age: str | None, option: str) -> int:
    """An age in seconds; 0 where the ``option`` was not given."""
    if age is None:
        return 0
    amount, unit = age[:-1], age[-1:]
    if not (amount.isascii() and amount.isdigit() and len(amount) < 8 and int(amount) and unit in _UNITS):
        end(f"{option} takes an age above 0: 45s, 90m, 12h, 30d")
    return int(amount) * _UNITS[unit]


def caller_lines(caller: str | None) -> list[str] | None:
    """The header lines on standard input that name a caller; ``None`` where ``--caller`` was not given."""
    if caller is None:
        return None
    if caller != "-":
        end(
            "--caller takes - only, and reads header lines from standard input: a credential is nothing for a command line"
        )
    text = sys.stdin.buffer.read().decode("utf-8", "surrogateescape")
    return [line for line in text.splitlines() if line.strip()]
