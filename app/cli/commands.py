"""``oncegate commands``: shows accepted commands, and retries or discards those that were given up. For 3 a.m."""

import sys
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    from oncegate.app.operators.dead_letters import Commands
    from oncegate.app.settings.gateway import GatewaySettings


@click.group(short_help="Look at accepted commands, and retry those that were given up.")
def commands() -> None:
    """Look at accepted commands, and have those processed again that a worker has given up.

    \b
      # what was given up, and why?
      oncegate commands list --config gateway.toml
    \b
      # what is known of this one? (the id is in the 202, in logs, and in the list)
      oncegate commands show Y8bAlpm6rOs3_.Ar.w7W:t9uHGWxINAXkD4QB.h_J
    \b
      # the cause is mended: process it again; or all of them
      oncegate commands retry Y8bAlpm6rOs3_.Ar.w7W:t9uHGWxINAXkD4QB.h_J
      oncegate commands retry --all
    \b
      # it will never be processed, and nobody needs to be told of it any more
      oncegate commands discard Y8bAlpm6rOs3_.Ar.w7W:t9uHGWxINAXkD4QB.h_J

    Keys and payloads are shown with --body alone.
    """


def _options(command: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """The options of every command: which stream, and the output format."""

    @click.option("--cache", metavar="URL", help="The Redis that the gateway uses.")
    @click.option("--namespace", metavar="NAME", help="The gateway's namespace (default: default).")
    @click.option("--stream", metavar="NAME", help="The command stream (default: commands).")
    @click.option("--consumer", metavar="NAME", help="Whose processing (default: the stream's name).")
    @click.option("--config", metavar="FILE", help="The gateway's TOML file (or ONCEGATE_CONFIG).")
    @click.option("--json", "as_json", is_flag=True, help="One JSON document, for scripts.")
    @wraps(command)
    def with_commands(
        *,
        cache: str | None,
        namespace: str | None,
        stream: str | None,
        consumer: str | None,
        config: str | None,
        as_json: bool,
        **options: Any,
    ) -> None:
        import asyncio
        import logging

        from oncegate.app.factory import create_cache
        from oncegate.app.operators.dead_letters import NotAnId, open_commands
        from oncegate.cache.errors import CacheError

        # An error is printed once, at the end; the cache's own warnings are for the log of a worker.
        logging.getLogger("oncegate").addHandler(logging.NullHandler())
        given = {"cache": cache, "namespace": namespace}
        settings = _settings(given, {"stream": stream, "consumer": consumer}, config)

        async def run() -> None:
            cache, of = create_cache(settings), settings.worker
            where = {"stream": of.stream, "consumer": of.consumer_name}
            try:
                async with open_commands(
                    settings.cache, cache, settings.namespace, timeout=settings.cache_timeout, **where
                ) as found:
                    await command(found=found, as_json=as_json, **options)
            finally:
                await cache.close()

        try:
            asyncio.run(run())
        except NotAnId as error:
            _end(str(error), 2)
        except CacheError as error:
            _end(str(error), 1)

    return with_commands


@commands.command("list")
@click.option("--pending", is_flag=True, help="Those that workers hold, executed now or waiting to be tried again.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True, help="How many at most.")
@click.option("--after", metavar="ID", help="Go on behind this dead letter.")
@_options
async def list_(found: "Commands", as_json: bool, pending: bool, limit: int, after: str | None) -> None:
    """Tell which commands were given up, the oldest first, and how many are waiting."""
    from oncegate.app.cli.commands_view import show_letters, show_pending
    from oncegate.app.operators.dead_letters import ENTRY_ID

    if after is not None and not ENTRY_ID.fullmatch(after):
        _end("--after takes the id of a dead letter: 1795281703248-0", 2)
    if not await found.exist():
        _end(f"there is no stream {found.name} in namespace {found.namespace}: see --stream, --namespace, --config", 1)
    if pending:
        show_pending(await found.pending(limit), await found.counts(), as_json=as_json)
        return
    show_letters(await found.listing(after=after or "", limit=limit), as_json=as_json)


@commands.command()
@click.argument("identifier", metavar="ID")
@click.option("--body", is_flag=True, help="With its key, its target's query and its payload.")
@_options
async def show(found: "Commands", as_json: bool, identifier: str, body: bool) -> None:
    """Tell what is known of a command: by its id, by that of its entry, or by that of its dead letter."""
    from oncegate.app.cli.commands_view import show_command

    command = await found.show(identifier, body=body)
    if command is None:
        _end("no such command: it was never accepted, or its time is over", 1)
    show_command(command, as_json=as_json)


@commands.command()
@click.argument("identifiers", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every dead letter that is there now.")
@_options
async def retry(found: "Commands", as_json: bool, identifiers: tuple[str, ...], everything: bool) -> None:
    """Have commands processed again: as many attempts as a new one has, by the consumer that gave them up.

    The dead letter goes and the new entry comes in one step. What had succeeded after all is skipped.
    """
    from oncegate.app.cli.commands_view import show_retried
    from oncegate.app.operators.dead_letters import Retried

    if bool(identifiers) == everything:
        _end("give ids, or --all", 2)
    outcome = Retried()
    missing: list[str] = []
    for identifier in identifiers:
        letters = await found.find(identifier)
        if not letters:
            missing.append(identifier)
        for letter in letters:
            await found.put_back(letter, outcome)
    if everything and (last := await found.newest()) is not None:
        # Up to what was there at the beginning: what dies again meanwhile is not driven round and round.
        async for letter in found.letters(last=last):
            await found.put_back(letter, outcome)
    show_retried(outcome.retried, as_json=as_json)
    if missing:
        _end(f"no dead letter of {', '.join(missing)}", 1)
    if outcome.unread:
        ids = ", ".join(outcome.unread)
        _end(f"left where they are, since their consumer reads the stream no more (start its worker first): {ids}", 1)


@commands.command()
@click.argument("identifiers", metavar="ID...", nargs=-1, required=True)
@_options
async def discard(found: "Commands", as_json: bool, identifiers: tuple[str, ...]) -> None:
    """Take dead letters away for good: what they hold is gone. Their commands' records stay as they are."""
    from oncegate.app.cli.commands_view import show_discarded

    discarded: list[dict[str, Any]] = []
    missing: list[str] = []
    for identifier in identifiers:
        discarded += (gone := await found.discard_each(await found.find(identifier)))
        if not gone:
            missing.append(identifier)
    show_discarded(discarded, as_json=as_json)
    if missing:
        _end(f"no dead letter of {', '.join(missing)}", 1)


def _settings(given: dict[str, str | None], worker: dict[str, str | None], config: str | None) -> "GatewaySettings":
    from oncegate.app.settings.sources import ConfigurationError, load
    from oncegate.cache.redis.url import REDIS_SCHEMES

    arguments: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    arguments["worker"] = {name: value for name, value in worker.items() if value is not None}
    try:
        settings = load(arguments, config, defaults={"upstream": "http://localhost"})
    except ConfigurationError as error:
        _end(str(error), 2)
    if settings.cache_scheme not in REDIS_SCHEMES:
        _end(
            "cache: commands are in the Redis that the gateway uses: give --cache redis://host:6379/0, or --config FILE",
            2,
        )
    return settings


def _end(line: str, code: int) -> NoReturn:
    click.echo(f"oncegate: {line}", err=True)
    sys.exit(code)
