"""Jobs of the thread that writes: what is to be done, and the event loop that gets the reply."""

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from oncegate.cache.sql.rows import Step

log = logging.getLogger("oncegate.cache")

Look = Callable[[sqlite3.Connection, int], Any]
"""A read besides the rows of single keys: on the connection, at an instant."""


class Job(NamedTuple):
    """A step or a look, and whom its reply goes to."""

    step: "Step | Look"
    then: Callable[[Any], None]
    loop: asyncio.AbstractEventLoop


def deliver(jobs: Sequence[Job], replies: Sequence[Any]) -> None:
    """Call each job's ``then`` with its reply, in its event loop: one wake-up of each loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Callable[[Any], None], Any]]] = {}
    for job, reply in zip(jobs, replies, strict=True):
        by_loop.setdefault(job.loop, []).append((job.then, reply))
    for loop, answers in by_loop.items():
        if not loop.is_closed():
            try:
                loop.call_soon_threadsafe(_pass_on, answers)
            except RuntimeError:  # closed just now
                log.debug("an event loop has ended before its answer")


def _pass_on(answers: Sequence[tuple[Callable[[Any], None], Any]]) -> None:
    for then, reply in answers:
        then(reply)
