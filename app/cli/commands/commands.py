"""``oncegate commands``: shows accepted commands, and retries or discards those that were given up. For 3 a.m."""

from collections.abc import Awaitable, Callable
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

import click

from oncegate.app.cli.audit import audit_lines, audit_shown, author, reason
from oncegate.app.cli.commands.commands_view import (
    print_changed,
    print_command,
    print_discarded,
    print_groups,
    print_letters,
    print_pending,
    print_retried,
    print_streams,
)
from oncegate.app.cli.terminal import output
from oncegate.app.cli.usage import (
    config_file,
    end,
    json_output,
    namespace,
    redis,
    redis_settings,
    run_quietly,
)

if TYPE_CHECKING:
    from oncegate.app.operators.letters.changes import LetterChanges
    from oncegate.app.operators.letters.dead_letters import Commands


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
      # many have died: of what? And all of one error again, once its cause is mended
      oncegate commands errors
      oncegate commands retry --error 3f9a1c0b7e52 --reason 'the account exists now'
    
      # who reads the stream, and how far behind?
      oncegate commands streams
    
      # it will never be processed, and nobody needs to know of it any more
      oncegate commands discard Y8bAlpm6rOs3_.Ar.w7W:t9uHGWxINAXkD4QB.h_J

    Keys and payloads are shown with --body alone.
    """


_SETTINGS = ("cache", "namespace"), ("stream", "consumer")


def _options(command: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """The options of every command: which stream, and the output format."""

    @redis
    @namespace
    @click.option("--stream", metavar="NAME", help="The command stream (default: commands).")
    @click.option("--consumer", metavar="NAME", help="Whose processing (default: the stream's name).")
    @config_file
    @json_output
    @wraps(command)
    def with_commands(config: str | None, **options: Any) -> None:
        async def run() -> None:
            from oncegate.app.factory import create_cache
            from oncegate.app.operators.letters.dead_letters import open_commands

            given, of_worker = ({name: options.pop(name) for name in names} for names in _SETTINGS)
            settings = redis_settings(given, of_worker, config, needed="commands are in")
            cache, of = create_cache(settings), settings.worker
            try:
                async with open_commands(settings, cache, of.stream, of.consumer_name) as found:
                    await command(found=found, **options)
            finally:
                await cache.close()

        run_quietly(run())

    return with_commands


@commands.command("list")
@click.option("--pending", is_flag=True, help="Those that workers hold, executed now or waiting to be tried again.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True, help="How many at most.")
@click.option("--after", metavar="ID", help="Go on behind this dead letter.")
@_options
async def list_(found: "Commands", as_json: bool, pending: bool, limit: int, after: str | None) -> None:
    """List the commands that were given up, the oldest first, and count those that wait."""
    from oncegate.cache.redis.streams.entry_id import ENTRY_ID

    if after is not None and not ENTRY_ID.fullmatch(after):
        end("--after takes the id of a dead letter: 1795281703248-0")
    if not await found.stream.exists():
        end(
            f"there is no stream {found.stream.name} in namespace {found.namespace}: see --stream, --namespace, --config",
            1,
        )
    if pending:
        held = {"pending": await found.pending(limit), "counts": await found.counts()}
        output(held, print_pending, as_json=as_json)
    else:
        output(await found.listing(after=after or "", limit=limit), print_letters, as_json=as_json)


@commands.command()
@click.argument("identifier", metavar="ID")
@click.option(
    "--body", is_flag=True, help="With its key, its target's query and its payload; the audit has who looked."
)
@_options
async def show(found: "Commands", as_json: bool, identifier: str, body: bool) -> None:
    """Show what is known of a command: by its id, by that of its entry, or by that of its dead letter."""
    missing = "no such command: it was never accepted, or its time is over"
    if body:
        from oncegate.app.operators.showing import whole_command

        with audit_shown():
            shown = await whole_command(found, audit_lines(found.cache, found.namespace), identifier, author(""))
    else:
        shown = await found.show(identifier)
    output(shown, print_command, as_json=as_json, missing=missing)


@commands.command()
@_options
async def streams(found: "Commands", as_json: bool) -> None:
    """Show how long the stream is, who reads it, and how far behind each reader is."""
    from oncegate.app.operators.letters.streams import stream_state

    output({"streams": [await stream_state(found)]}, print_streams, as_json=as_json)


@commands.command()
@click.option(
    "--scan", type=click.IntRange(1), default=10_000, show_default=True, help="Look at the newest N.", metavar="N"
)
@_options
async def errors(found: "Commands", as_json: bool, scan: int) -> None:
    """Group the commands that were given up by their error: those that differ in numbers and ids alone are one group.

    It reads the newest dead letters, without their payloads: some 10,000 in a second. Whether there are others is said.
    """
    from oncegate.app.operators.letters.groups import by_error

    output(await by_error(found, most=scan), print_groups, as_json=as_json)


error_option = click.option(
    "--error", "group", metavar="GROUP", help="All of one error, as oncegate commands errors names it."
)


@commands.command()
@click.argument("identifiers", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every dead letter that is there now.")
@error_option
@reason
@_options
async def retry(
    found: "Commands", as_json: bool, identifiers: tuple[str, ...], everything: bool, group: str | None, reason: str
) -> None:
    """Have commands processed again: as many attempts as a new one has, by the consumer that gave them up.

    The dead letter goes and the new entry comes in one step. What had succeeded after all is skipped.
    """
    if [bool(identifiers), everything, group is not None].count(True) != 1:
        end("give ids, or --all, or --error GROUP")
    if group is not None:
        await _all_of(found, group, reason, retries=True, as_json=as_json)
        return
    missing: list[str] = []
    if everything:
        from oncegate.app.operators.letters.changes import retry_all

        with audit_shown():
            done = await retry_all(found, audit_lines(found.cache, found.namespace), author(reason))
    else:
        done, missing = await _each_of(found, identifiers, reason, retries=True)
    output({"retried": done.changed, "complete": done.complete}, print_retried, as_json=as_json)
    if missing:
        end(_none_of(missing, done), 1)
    if done.unread:
        ids = ", ".join(done.unread)
        end(f"left where they are, since their consumer reads the stream no more (start its worker first): {ids}", 1)


async def _each_of(
    found: "Commands", identifiers: tuple[str, ...], reason: str, *, retries: bool
) -> tuple["LetterChanges", list[str]]:
    """Retry or discard the dead letters of each id; what came of it, and the ids that have none."""
    from oncegate.app.operators.letters.changes import LetterChanges, change_letters

    all_done, missing = LetterChanges(), list[str]()
    kept, by = audit_lines(found.cache, found.namespace), author(reason)
    with audit_shown():
        for identifier in identifiers:
            done = await change_letters(found, kept, identifier, by, retries=retries)
            if not (done.changed or done.unread):
                missing.append(identifier)
            all_done.changed += done.changed
            all_done.unread += done.unread
            all_done.complete = all_done.complete and done.complete
    return all_done, missing


async def _all_of(found: "Commands", group: str, reason: str, *, retries: bool, as_json: bool) -> None:
    """Retry or discard the letters of one group, a bounded number at a time, until there are no more, or none changes."""
    from oncegate.app.operators.letters.changes import change_group
    from oncegate.app.operators.letters.group import GROUP

    if not GROUP.fullmatch(group):
        end("--error takes a group of oncegate commands errors: 12 hexadecimal digits")
    name, changed, unread, more = "retried" if retries else "discarded", 0, 0, True
    kept, by = audit_lines(found.cache, found.namespace), author(reason)
    with audit_shown():
        while more:
            done = await change_group(found, kept, group, by, retries=retries)
            changed, unread = changed + done["changed"], done["unread"]
            more = bool(done["more"] and done["changed"])
    output({"error": group, name: changed, "unread": unread}, partial(print_changed, done=name), as_json=as_json)
    if unread:
        end("those that are left stay: their consumer reads the stream no more (start its worker first)", 1)


@commands.command()
@click.argument("identifiers", metavar="[ID]...", nargs=-1)
@error_option
@reason
@_options
async def discard(
    found: "Commands", as_json: bool, identifiers: tuple[str, ...], group: str | None, reason: str
) -> None:
    """Take dead letters away for good: what they hold is gone. Their commands' records stay as they are."""
    if bool(identifiers) == (group is not None):
        end("give ids, or --error GROUP")
    if group is not None:
        await _all_of(found, group, reason, retries=False, as_json=as_json)
        return
    done, missing = await _each_of(found, identifiers, reason, retries=False)
    output({"discarded": done.changed, "complete": done.complete}, print_discarded, as_json=as_json)
    if missing:
        end(_none_of(missing, done), 1)


def _none_of(missing: list[str], done: "LetterChanges") -> str:
    from oncegate.app.operators.letters.dead_letters import NOT_ALL

    return f"no dead letter of {', '.join(missing)}{'' if done.complete else f' {NOT_ALL}'}"
