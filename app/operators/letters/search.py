"""Dead letters and commands by what is known of them, in a bounded look: nothing keeps letters by command, aggregate or entry."""

from collections.abc import Callable
from typing import Any, Final

from oncegate.app.operators.letters.dead_letters import Commands, Letter
from oncegate.app.operators.letters.group import GROUP
from oncegate.app.operators.letters.groups import group_of
from oncegate.cache.record import State
from oncegate.cache.redis.streams.entry_id import ENTRY_ID
from oncegate.middleware.rules.keys.key import RECORD_ID

MOST_SEARCHED: Final = 2000
"""Dead letters that one search looks at, the newest."""
MOST_LETTERS: Final = 20
_ENDS: Final = (State.SUCCEEDED, State.IN_FLIGHT)
"""States of an execution after which there is no dead letter of it."""


async def letters_like(
    commands: Commands, wanted: Callable[[Letter], bool], most: int = MOST_SEARCHED
) -> tuple[list[Letter], bool]:
    """The newest letters that are ``wanted``, `MOST_LETTERS` at most; and whether all there are were looked at."""
    found: list[Letter] = []
    scanned = 0
    async for letter in commands.heads():
        if scanned == most or len(found) == MOST_LETTERS:
            return found, False
        scanned += 1
        if wanted(letter):
            found.append(letter)
    return found, True


async def letters_named(commands: Commands, what: str, most: int = MOST_SEARCHED) -> tuple[list[Letter], bool]:
    """The dead letters that ``what`` names, and whether all were looked at: by their own id, by that of their entry, of their
    command, of their error's group, or by what they are about (its aggregate; not where streams are encrypted).
    """
    if ENTRY_ID.fullmatch(what):
        some = await commands.shown(await commands.stream.letters(what, what, 1))
        return (some, True) if some else await letters_like(commands, lambda letter: letter.entry == what, most)
    if RECORD_ID.fullmatch(what):
        return await letters_like(commands, lambda letter: letter.command == what, most)
    if GROUP.fullmatch(what):
        return await letters_like(commands, lambda letter: what in (group_of(letter), letter.aggregate), most)
    return await letters_like(commands, lambda letter: letter.aggregate == what, most)


async def command_of_entry(commands: Commands, entry: str) -> str:
    """The id of the command that an entry of the stream holds; empty where it isn't there."""
    held = await commands.stream.entry(entry)
    return "" if held is None else (await commands.shown([(entry, held)]))[0].command


async def command_place(commands: Commands, identifier: str) -> dict[str, Any] | None:
    """Where an accepted command is in this stream: its ``entry``, what became of its ``execution``, and its ``letters``.

    ``waits``: the entry is in the stream. ``searched``: whether all dead letters were looked at for it; they aren't where its
    execution says that there is none. ``None``: nothing of it is here. Raises `oncegate.cache.errors.CacheError`.
    """
    accepted, execution = await commands.accepted(identifier), await commands.execution(identifier)
    waits = b"body" in accepted.fields and accepted.command == identifier
    letters: list[Letter] = []
    searched = True
    if execution is None or execution["state"] not in _ENDS:
        letters, searched = await letters_named(commands, identifier)
    if not (waits or execution or letters):
        return None
    return {
        "consumer": commands.consumer,
        "entry": accepted.id or None,
        "waits": waits,
        "aggregate": accepted.aggregate,
        "sequence": accepted.sequence,
        "execution": execution,
        "letters": [letter.as_json() for letter in letters],
        "searched": searched,
    }
