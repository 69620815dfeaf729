"""``oncegate inbox cleanup``: its progress, what it must keep for a worker, and its result."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as ProgressBar

from oncegate.app.cli.terminal import console, output
from oncegate.app.cli.usage import end
from oncegate.cache.errors import CacheError
from oncegate.cache.redis.streams.commands import stream_client
from oncegate.cache.redis.streams.stream import CommandStream
from oncegate.middleware.consumers.delivery import broker_time
from oncegate.sql.inbox.cleanup import Progress, Retention, forget_in
from oncegate.sql.marking.statements import CLOCK_MARGIN

if TYPE_CHECKING:
    from oncegate.app.settings.gateway import GatewaySettings


def clean_up(
    database: str, schema: str | None, retention: Retention, settings: "GatewaySettings | None", *, dry_run: bool
) -> Progress:
    """Forget once, and show how far it is. With ``settings`` nothing goes that is younger than what their worker may still get.

    Raises `NotDone`; ends where the worker's stream can't be read.
    """

    async def run() -> Progress:
        keep_from = None if settings is None else await _needed_from(settings)
        with _shown(Console(stderr=True)) as progress:
            return await forget_in(database, schema, retention, keep_from=keep_from, dry_run=dry_run, progress=progress)

    try:
        return asyncio.run(run())
    except CacheError as error:
        end(str(error), 1)


async def _needed_from(settings: "GatewaySettings") -> datetime | None:
    """The instant from which on markers are needed: when the worker's earliest command was sent that is not acknowledged.

    It is compared with the same command's own instant, less the margin (oncegate.sql.marking.statements): so no other clock
    counts here, neither that of Redis nor another gateway's, which would use up the margin.
    """
    worker = settings.worker
    client = stream_client(settings.cache, timeout=settings.cache_timeout)
    try:
        earliest = await CommandStream(client, settings.namespace, worker.stream).oldest_sent_ms(worker.consumer_name)
    finally:
        await client.close()
    sent = None if earliest is None else broker_time(earliest)
    return None if sent is None else sent - CLOCK_MARGIN


@contextmanager
def _shown(err: Console) -> Iterator[Callable[[Progress], None]]:
    """Shows the progress, where ``err`` is a terminal."""
    shown = TextColumn("{task.description}")
    columns = (SpinnerColumn(), shown, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with ProgressBar(*columns, console=err, disable=not err.is_terminal, transient=True) as bar:
        task = bar.add_task("forgetting", total=None)
        yield lambda done: bar.update(task, total=done.due, completed=done.pruned)


def show_cleanup(done: Progress, *, dry_run: bool, as_json: bool) -> None:
    """Print how many markers were found and deleted."""
    until = done.until.replace(microsecond=0, tzinfo=None).isoformat() + "Z"
    line = f"{done.due} found, {'none' if dry_run else done.pruned} deleted: those marked before {until}"
    document = {"found": done.due, "pruned": done.pruned, "until": until, "dry_run": dry_run}
    output(document, lambda _: console().print(line, markup=False), as_json=as_json)
