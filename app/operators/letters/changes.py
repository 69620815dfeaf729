"""An operator's changes of dead letters, made and reported: one road for the API and for the console.

What was changed before the cache went away is reported, too.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from oncegate.app.operators.audit import Author
from oncegate.app.operators.audit_lines import AuditLines
from oncegate.app.operators.letters.dead_letters import Commands, Letter
from oncegate.app.operators.letters.groups import letters_of
from oncegate.app.operators.records.resolving import report

MOST_CHANGED: Final = 1000
"""Letters of a group that are retried or discarded at once."""


@dataclass(slots=True)
class LetterChanges:
    """What came of a change: the letters that were changed, as `Commands.retry` and `Commands.discard` name them, and the ids of
    those that are ``unread``, and stay: their consumer has no group.
    """

    changed: list[dict[str, Any]] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)

    async def make(self, commands: Commands, letters: Iterable[Letter], author: Author, *, retries: bool) -> None:
        """Retry or discard ``letters``. Raises `oncegate.cache.errors.CacheError`; what was changed by then is here."""
        for letter in letters:
            if retries:
                done = await commands.retry(letter, author)
                self.changed += done["retried"]
                self.unread += done["unread"]
            else:
                self.changed += await commands.discard([letter])


async def change_letters(
    commands: Commands, audit: AuditLines | None, identifier: str, author: Author, *, retries: bool
) -> LetterChanges:
    """Retry or discard the dead letters of an id, as `Commands.find` knows them.

    Raises `oncegate.app.operators.letters.dead_letters.NotAnId`, `oncegate.cache.errors.CacheError`.
    """
    letters = await commands.find(identifier)
    return await make_and_report(commands, audit, letters, author, retries, lambda _: f"dead letters of {identifier}")


async def change_group(
    commands: Commands, audit: AuditLines | None, group: str, author: Author, *, retries: bool
) -> dict[str, int | bool]:
    """Retry or discard each letter of ``group``, up to `MOST_CHANGED`; of those that are there now, the newest first.

    How many were ``changed``, how many are ``unread`` and stay, and whether ``more`` may be of the group. Raises
    `oncegate.cache.errors.CacheError`.
    """
    letters, more = await letters_of(commands, group, MOST_CHANGED)
    stream = commands.stream.name
    done = await make_and_report(commands, audit, letters, author, retries, lambda number: named(number, stream, group))
    return {"changed": len(done.changed), "unread": len(done.unread), "more": more}


def named(number: int, stream: str, group: str) -> str:
    """The dead letters of one error, as audit lines name them."""
    return f"{number} dead letters of stream {stream} with error {group}"


async def make_and_report(
    commands: Commands,
    audit: AuditLines | None,
    letters: Iterable[Letter],
    author: Author,
    retries: bool,
    what: Callable[[int], str],
) -> LetterChanges:
    """Retry or discard ``letters``, and report ``what`` was changed by its number, also where an error has ended it."""
    changes = LetterChanges()
    try:
        await changes.make(commands, letters, author, retries=retries)
    finally:
        if changes.changed:
            await report(audit, author, what(len(changes.changed)), "retried" if retries else "discarded")
    return changes
