"""Why an entry was given up: the fields that a dead letter has beside its entry's own.

acknowledge.lua and retry.lua know some of them by name, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from oncegate.cache.redis.streams.stream import Fields

REASON = b"dead.reason"
ERROR_TYPE = b"dead.error_type"
ERROR = b"dead.error"
AT = b"dead.at"
MOST_BYTES = 2000
"""The most that is kept of an error's type, and of its text. The record keeps more of them."""


@dataclass(frozen=True, slots=True)
class Death:
    """Why ``consumer`` gave up the entry with the id ``entry``, on ``worker``, at ``at_ms`` (Unix time)."""

    consumer: str
    reason: str
    attempts: int
    error_type: str
    error: str
    entry: str
    worker: str
    at_ms: int

    def fields(self) -> Fields:
        """The fields, in the order in which they are written."""
        return {
            b"dead.consumer": self.consumer.encode(),
            REASON: self.reason.encode(),
            b"dead.attempts": b"%d" % self.attempts,
            ERROR_TYPE: _cut(self.error_type),
            ERROR: _cut(self.error),
            b"dead.entry": self.entry.encode(),
            b"dead.worker": self.worker.encode(),
            AT: b"%d" % self.at_ms,
        }

    @classmethod
    def read(cls, fields: Mapping[bytes, bytes]) -> "Death":
        """The death that a dead letter's fields describe. A field that is missing, or can't be read, is empty, or 0."""
        return cls(
            consumer=text_of(fields, b"dead.consumer"),
            reason=text_of(fields, REASON),
            attempts=number_of(fields, b"dead.attempts"),
            error_type=text_of(fields, ERROR_TYPE),
            error=text_of(fields, ERROR),
            entry=text_of(fields, b"dead.entry"),
            worker=text_of(fields, b"dead.worker"),
            at_ms=number_of(fields, AT),
        )


def text_of(fields: Mapping[bytes, bytes], name: bytes) -> str:
    """A field for people."""
    return fields.get(name, b"").decode("utf-8", "replace")


def number_of(fields: Mapping[bytes, bytes], name: bytes) -> int:
    """The same of a number below 10**15, such as an instant; else 0."""
    digits = fields.get(name, b"")
    return int(digits) if digits.isdigit() and len(digits) < 16 else 0


def _cut(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")[:MOST_BYTES]
