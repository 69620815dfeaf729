"""A request's preferences: ``Prefer`` (RFC 7240 section 2), in one pass over a bounded number of bytes, and one of ours."""
# Compiled: docs/decisions/0012-compiled.md

import re
from collections.abc import Sequence
from typing import Final

from oncegate.cache.fields import FIELD_NAME
from oncegate.middleware.rules.headers.added_headers import field
from oncegate.middleware.rules.keys.key import Fields
from oncegate.middleware.rules.policy import PREFER, Policy

_APPLIED: Final = field("Preference-Applied")
MAX_PREFER_BYTES: Final = 1024
"""The most bytes of all field lines. With more, all of it is ignored, as a server may (RFC 7240 section 2)."""

_TOKEN: Final = FIELD_NAME.encode()
_WORD: Final = rb"(" + _TOKEN + rb'|"(?:[^"\\]|\\.)*")'
_VALUE: Final = rb"(?:[ \t]*=[ \t]*" + _WORD + rb")?"
"""An empty value, in quotes, is none (RFC 7240 section 2)."""
# White space belongs to what comes after it, so that there is one way only to read each spelling.
_PREFERENCE: Final = re.compile(
    rb"[ \t]*(" + _TOKEN + rb")" + _VALUE + rb"(?:[ \t]*;(?:[ \t]*" + _TOKEN + _VALUE + rb")?)*[ \t]*(?:,|$)",
    re.DOTALL,
)


class Preferences:
    """The preferences of one request, and which of them its answer names as applied.

    ``respond_async``: it prefers that; ``accepted``: its answer is the one that a submission got; ``waited``: the seconds of its
    ``wait``, once a wait took place.
    """

    __slots__ = ("accepted", "respond_async", "waited")

    def __init__(self, *, respond_async: bool = False) -> None:
        self.respond_async = respond_async
        self.accepted = False
        self.waited: int | None = None

    def add_applied(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Add ``Preference-Applied``, where any was applied."""
        applied = [b"respond-async"] if self.respond_async and self.accepted else []
        if self.waited is not None:
            applied.append(b"wait=%d" % self.waited)
        if applied:
            headers.append((_APPLIED, b", ".join(applied)))


def preferences(lines: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    """Name (lower-case) and value of each preference, in their order, without quotes and parameters."""
    if sum(map(len, lines)) > MAX_PREFER_BYTES:
        return []
    return [preference for line in lines for preference in read_line(line)]


def read_line(line: bytes) -> list[tuple[bytes, bytes]]:
    """The preferences of one field line. What is not of the grammar is passed over, up to the next comma."""
    found: list[tuple[bytes, bytes]] = []
    at = 0
    while at < len(line):
        match = _PREFERENCE.match(line, at)
        if match is not None:
            found.append((match[1].lower(), (match[2] or b"").strip(b'"')))
            at = match.end()
        else:
            comma = line.find(b",", at)
            at = comma + 1 if comma >= 0 else len(line)
    return found


def wanted_wait(fields: Fields, policy: Policy, otherwise: float = 0.0) -> float:
    """Whole seconds to wait for a concurrent request: ``Prefer: wait=N`` (RFC 7240 section 4.3), capped by ``max_wait``, else
    ``otherwise``.
    """
    lines = fields.get(PREFER)
    if lines is None:  # as a rule
        return otherwise
    for name, value in preferences(lines):
        if name == b"wait" and value.isdigit():
            seconds = value.lstrip(b"0")[:9]  # of any length: int() takes thousands of digits badly, or not at all
            return float(min(int(seconds or 0), int(policy.settings.max_wait)))
    return otherwise


def wants_async(fields: Fields) -> bool:
    """Whether the caller prefers that the command is processed later: ``Prefer: respond-async`` (RFC 7240 section 4.1)."""
    lines = fields.get(PREFER)
    return lines is not None and (b"respond-async", b"") in preferences(lines)


def wants_error(lines: Sequence[bytes]) -> bool:
    """Whether a duplicate is to be answered with an error: by the lines of ``Idempotency-Raise-On-Duplicate``."""
    return lines[0].strip().lower() in (b"?1", b"1", b"true")
