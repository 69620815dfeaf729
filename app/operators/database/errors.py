"""Errors of the consumers' database, as operators see them, and the bounds of one answer."""

from typing import Final

MOST_LISTED: Final = 1000
"""Rows of one answer."""


class DatabaseUnavailable(Exception):
    """The database can't be reached, does not answer, or refuses. ``is_silent``: a change may have been made."""

    def __init__(self, text: str, *, is_silent: bool = False) -> None:
        super().__init__(text)
        self.is_silent = is_silent


class NotKept(Exception):
    """The database has no such table, or nothing of that name."""


class ChangeRefused(Exception):
    """The database has it otherwise than the change expects: nothing was changed."""
