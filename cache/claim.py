"""`Claim`: a cache's answer to a claim, and to a read of a record."""
# Compiled: docs/decisions/0012-compiled.md

from dataclasses import dataclass

from oncegate.cache.record import Record


@dataclass(slots=True, init=False)  # as a `Record`: every request makes one
class Claim:
    """The answer to a claim: ``won`` says whether ``record`` is now the caller's own attempt in flight.

    ``remaining_ms`` is what the record has left to live (for one in flight: lease and retention together).
    """

    won: bool
    record: Record
    remaining_ms: int

    def __init__(self, won: bool, record: Record, remaining_ms: int) -> None:
        self.won = won
        self.record = record
        self.remaining_ms = remaining_ms
