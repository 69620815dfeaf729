"""``oncegate commands``: shows accepted commands, and retries or discards those that were given up. For 3 a.m."""

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from oncegate.app.cli.usage import audit, author, end, reason, redis_settings

if TYPE_CHECKING:
    from oncegate.app.operators.dead_letters import Commands, Letter


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


_SETTINGS = ("cache", "namespace"), ("stream", "consumer")


def _options(command: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """The options of every command: which stream, and the output format."""

    @click.option("--cache", metavar="URL", help="The Redis that the gateway uses.")
    @click.option("--namespace", metavar="NAME", help="The gateway's namespace (default: default).")
    @click.option("--stream", metavar="NAME", help="The command stream (default: commands).")
    @click.option("--consumer", metavar="NAME", help="Whose processing (default: the stream's name).")
    @click.option("--config", metavar="FILE", help="The gateway's TOML file (or ONCEGATE_CONFIG).")
    @click.option("--json", "as_json", is_flag=True, help="One JSON document, for scripts.")
    @wraps(command)
    def with_commands(*, config: str | None, as_json: bool, **options: Any) -> None:
        import asyncio
        import logging

        from oncegate.app.factory import create_cache
        from oncegate.app.operators.dead_letters import NotAnId, open_commands
        from oncegate.cache.errors import CacheError

        # An error is printed once, at the end; the cache's own warnings are for the log of a worker.
        logging.getLogger("oncegate").addHandler(logging.NullHandler())
        given, of_worker = ({name: options.pop(name) for name in names} for names in _SETTINGS)
        settings = redis_settings(given, of_worker, config, needed="commands are in")

        async def run() -> None:
            cache, of = create_cache(settings), settings.worker
            try:
                async with open_commands(settings, cache, of.stream, of.consumer_name) as found:
                    await command(found=found, as_json=as_json, **options)
            finally:
                await cache.close()

        try:
            asyncio.run(run())
        except NotAnId as error:
            end(str(error))
        except CacheError as error:
            end(str(error), 1)

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
        end("--after takes the id of a dead letter: 1795281703248-0")
    if not await found.exist():
        end(f"there is no stream {found.name} in namespace {found.namespace}: see --stream, --namespace, --config", 1)
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
        end("no such command: it was never accepted, or its time is over", 1)
    show_command(command, as_json=as_json)


@commands.command()
@click.argument("identifiers", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every dead letter that is there now.")
@reason
@_options
async def retry(found: "Commands", as_json: bool, identifiers: tuple[str, ...], everything: bool, reason: str) -> None:
    """Have commands processed again: as many attempts as a new one has, by the consumer that gave them up.

    The dead letter goes and the new entry comes in one step. What had succeeded after all is skipped.
    """
    from oncegate.app.cli.commands_view import show_retried

    if bool(identifiers) == everything:
        end("give ids, or --all")
    retried: list[dict[str, Any]] = []
    unread: list[str] = []
    missing: list[str] = []

    async def put_back(letter: "Letter") -> None:
        done = await _put_back(found, letter, reason)
        retried.extend(done["retried"])
        unread.extend(done["unread"])

    for identifier in identifiers:
        letters = await found.find(identifier)
        if not letters:
            missing.append(identifier)
        for letter in letters:
            await put_back(letter)
    if everything and (last := await found.newest()) is not None:
        # Up to what was there at the beginning: what dies again meanwhile is not driven round and round.
        async for letter in found.letters(last=last):
            await put_back(letter)
    show_retried(retried, as_json=as_json)
    if missing:
        end(f"no dead letter of {', '.join(missing)}", 1)
    if unread:
        ids = ", ".join(unread)
        end(f"left where they are, since their consumer reads the stream no more (start its worker first): {ids}", 1)


async def _put_back(found: "Commands", letter: "Letter", reason: str) -> dict[str, list[Any]]:
    done = await found.put_back(letter, author(reason))
    if done["retried"]:
        audit(f"dead letter {letter.id} of command {letter.command}", "retried", reason)
    return done


@commands.command()
@click.argument("identifiers", metavar="ID...", nargs=-1, required=True)
@reason
@_options
async def discard(found: "Commands", as_json: bool, identifiers: tuple[str, ...], reason: str) -> None:
    """Take dead letters away for good: what they hold is gone. Their commands' records stay as they are."""
    from oncegate.app.cli.commands_view import show_discarded

    discarded: list[dict[str, Any]] = []
    missing: list[str] = []
    for identifier in identifiers:
        discarded += (gone := await found.discard_each(await found.find(identifier)))
        if gone:
            audit(f"dead letters of {identifier}", "discarded", reason)
        else:
            missing.append(identifier)
    show_discarded(discarded, as_json=as_json)
    if missing:
        end(f"no dead letter of {', '.join(missing)}", 1)
