"""An operator's changes of dead letters, made and reported: one road for the API, for the console and for the command line.

Each letter has its line of the log, each change of several one that is kept, too. What was changed before the cache went away is
reported as well.
"""

from collections.abc import AsyncIterable, AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from oncegate.app.operators.audit import Author, printable
from oncegate.app.operators.audit_lines import AuditLines, report
from oncegate.app.operators.letters.dead_letters import Commands, Letter
from oncegate.app.operators.letters.groups import letters_of

MOST_CHANGED: Final = 1000
"""Letters of a group that are retried or discarded at once."""


@dataclass(slots=True)
class LetterChanges:
    """A change's outcome: the letters that were changed, as `Commands.retry` and `Commands.discard` name them, and the ids of
    those that are ``unread``, and stay: their consumer has no group. ``complete``: whether those were all that there are.
    """

    changed: list[dict[str, Any]] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    complete: bool = True

    async def make(self, commands: Commands, letters: AsyncIterable[Letter], author: Author, *, retries: bool) -> None:
        """Retry or discard ``letters``, each with its line of the log.

        Raises `oncegate.cache.errors.CacheError`; what was changed by then is here.
        """
        async for letter in letters:
            if retries:
                done = await commands.retry(letter, author)
                changed = done["retried"]
                self.unread += done["unread"]
            else:
                changed = await commands.discard([letter])
            if changed:
                self.changed += changed
                which = f"dead letter {letter.id} of command {printable(letter.command) or 'not known'}"
                author.report(which, _done(retries=retries))


async def change_letters(
    commands: Commands, audit: AuditLines | None, identifier: str, author: Author, *, retries: bool
) -> LetterChanges:
    """Retry or discard the dead letters of an id, as `Commands.find` knows them.

    Raises `oncegate.app.operators.letters.dead_letters.NotAnId`, `oncegate.cache.errors.CacheError`.
    """
    letters, are_all = await commands.find(identifier)
    done = await make_and_report(commands, audit, _each(letters), author, identifier, retries=retries)
    done.complete = are_all
    return done


async def change_group(
    commands: Commands, audit: AuditLines | None, group: str, author: Author, *, retries: bool
) -> dict[str, int | bool]:
    """Retry or discard each letter of ``group``, up to `MOST_CHANGED`; of those that are there now, the newest first.

    How many were ``changed``, how many are ``unread`` and stay, and whether ``more`` may be of the group. Raises
    `oncegate.cache.errors.CacheError`.
    """
    letters, more = await letters_of(commands, group, MOST_CHANGED)
    of = f"stream {commands.stream.name} with error {group}"
    done = await make_and_report(commands, audit, _each(letters), author, of, retries=retries)
    return {"changed": len(done.changed), "unread": len(done.unread), "more": more}


async def retry_all(commands: Commands, audit: AuditLines | None, author: Author) -> LetterChanges:
    """Retry every letter that is there now, the oldest first: what dies again meanwhile is not retried round and round.

    Raises `oncegate.cache.errors.CacheError`.
    """
    last = await commands.stream.newest_letter()
    letters = _each([]) if last is None else commands.letters(last=last)
    return await make_and_report(commands, audit, letters, author, f"stream {commands.stream.name}", retries=True)


async def make_and_report(
    commands: Commands,
    audit: AuditLines | None,
    letters: AsyncIterable[Letter],
    author: Author,
    of: str,
    *,
    retries: bool,
) -> LetterChanges:
    """Retry or discard ``letters``, and report how many ``of`` what were changed, also where an error has ended it."""
    changes = LetterChanges()
    try:
        await changes.make(commands, letters, author, retries=retries)
    finally:
        if changes.changed:
            await report(audit, author, f"{len(changes.changed)} dead letters of {of}", _done(retries=retries))
    return changes


def _done(*, retries: bool) -> str:
    return "retried" if retries else "discarded"


async def _each(letters: Iterable[Letter]) -> AsyncIterator[Letter]:
    for letter in letters:
        yield letter
