"""Who changed what, and why: kept with the record, and a line of the log ``oncegate.audit``."""

import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # the command line's help needs the rest of this
    from oncegate.cache.transitions import ResolveRequest

log = logging.getLogger("oncegate.audit")

OPERATOR: Final = "oncegate.operator"
"""The key of an ASGI scope under which an operator's name is."""
MOST_REASON: Final = 120
"""Characters of a reason: with a name, what a record's note can hold."""
REASON: Final = re.compile(r"[^\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]*")
"""One line, which reads as it is: without marks that turn a text round or hide in it (Unicode's UAX 9)."""


def printable(text: str) -> str:
    """``text``, which comes from elsewhere, as one line that hides nothing: no name in it begins another line of the audit."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)


def resolved(resolve: "ResolveRequest") -> str:
    """A resolution in words: the state that it gave a record, and whether by force."""
    to = resolve.state.value if resolve.state else "absent"
    return f"resolved to {to}{', by force,' if resolve.force else ''}"


@dataclass(frozen=True, slots=True)
class Author:
    """The author of a change: an operator's ``name``, and the ``reason`` that was given; both may be empty."""

    name: str = ""
    reason: str = ""

    def note(self, done: str) -> str:
        """The note that is kept: ``done`` by whom, and why."""
        return f"{done} by {self.name or 'an operator'}" + (f": {self.reason}" if self.reason else "")

    def report(self, what: str, done: str) -> None:
        """Write the line about ``what`` was ``done`` to."""
        log.warning("%s: %s", what, self.note(done))
