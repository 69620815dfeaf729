"""Dead letters grouped by their error: a poison command may have filled the stream.

Strategy. Letters are looked at from the newest on, a bounded number of them, without their bodies. Errors that differ in numbers
and ids alone are one group; its name is a digest of what its letters have in common, so that it is the same in each process.
"""

import re
from typing import Any, Final

from oncegate.app.operators.letters.dead_letters import MOST_SCANNED, Commands, Letter
from oncegate.app.operators.letters.group import LetterGroup, group_id
from oncegate.cache.redis.streams.letter import AT, ERROR, ERROR_TYPE, REASON, number_of, text_of

MOST_GROUPS: Final = 100
"""Groups that are told apart; the rest is counted together."""
_MOST_TEXT: Final = 200
_MOST_ROUTES: Final = 5
_VARIES: Final = re.compile(r"\b(?=[0-9a-fA-F-]*[0-9])[0-9a-fA-F-]{8,}\b|[0-9]+")
"""Numbers, and what looks like an id."""


def group_of(letter: Letter) -> str:
    """The name of the group that a letter is of."""
    return group_id(*_in_common(letter))


def _in_common(letter: Letter) -> tuple[str, str, str]:
    """The reason, the type of the error and its text, which all letters of a group have in common."""
    reason, error_type, error = (text_of(letter.fields, name) for name in (REASON, ERROR_TYPE, ERROR))
    first, *_ = error.splitlines() or [""]
    return reason, error_type[:_MOST_TEXT], _VARIES.sub("#", first[: 4 * _MOST_TEXT])[:_MOST_TEXT]


async def by_error(commands: Commands, *, most: int = MOST_SCANNED) -> dict[str, Any]:
    """The ``groups`` of the newest ``most`` dead letters, the largest first.

    ``scanned`` is how many letters those were, ``complete`` whether they were all; ``others`` are in groups that are not told
    apart. Raises `oncegate.cache.errors.CacheError`.
    """
    groups: dict[tuple[str, str, str], LetterGroup] = {}
    scanned, others, is_complete = 0, 0, True
    async for letter in commands.heads():
        if scanned == most:
            is_complete = False
            break
        scanned += 1
        key = _in_common(letter)
        group = groups.get(key)
        if group is None:
            if len(groups) == MOST_GROUPS:
                others += 1
                continue
            group = groups[key] = LetterGroup(*key)
        _add(group, letter)
    ordered = sorted(groups.values(), key=lambda each: (-each.count, each.id))
    return {
        "groups": [each.as_json() for each in ordered],
        "scanned": scanned,
        "complete": is_complete,
        "others": others,
    }


async def letters_of(commands: Commands, group: str, limit: int) -> tuple[list[Letter], bool]:
    """The newest ``limit`` letters of ``group``, and whether there may be others: all are read before any is changed.

    They have what `group_of` needs, and not what they hold.
    """
    letters: list[Letter] = []
    scanned = 0
    async for letter in commands.heads():
        if len(letters) == limit or scanned == MOST_SCANNED:
            return letters, True
        scanned += 1
        if group_of(letter) == group:
            letters.append(letter)
    return letters, False


def _add(group: LetterGroup, letter: Letter) -> None:
    at_ms = number_of(letter.fields, AT)
    group.count += 1
    group.example = group.example or letter.id
    group.newest_ms = max(group.newest_ms, at_ms)
    group.oldest_ms = min(group.oldest_ms or at_ms, at_ms)
    if len(group.routes) < _MOST_ROUTES and (route := letter.route):
        group.routes.add(route)
