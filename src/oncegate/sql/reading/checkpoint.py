"""How far an append-only table is published, and which rows come next: exact, by the numbers of transactions.

Positions are given out before their transactions commit, so a row may appear before one that was published already. Both
orders, this one and the `oncegate.sql.reading.window`, decide without I/O: they get rows from a function.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Row


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A source's row in `oncegate_checkpoint`; ``ahead`` are positions, or first and last ones, that are published too."""

    transaction: int = 0
    position: int = 0
    ahead: str = "[]"


@dataclass(frozen=True, slots=True)
class Place:
    """A row, and where it is. It ``is_ready`` unless an open transaction may still put something before it."""

    transaction: int
    position: int
    is_ready: bool
    row: Row[Any]


Read = Callable[[int, int, int], Sequence[Place]]
"""Rows behind a transaction's number and a position, in their order, up to so many."""


class TransactionOrder:
    """Exact: rows in the order of their transactions' numbers, of transactions that are older than each open one.

    What commits later has a higher number, and is never passed. At most ``kept`` rows are published ahead of one that is not.
    """

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._checkpoint = Checkpoint()
        self._ahead: set[int] = set()
        self._read: list[Place] = []

    @property
    def place(self) -> tuple[int, int]:
        """The transaction's number and the position up to which all is published."""
        return self._checkpoint.transaction, self._checkpoint.position

    @property
    def published(self) -> int:
        """How many rows behind that are published."""
        return len(self._ahead)

    def load(self, checkpoint: Checkpoint) -> None:
        """Go on from ``checkpoint``, which another relay, or an operator, may have changed."""
        self._checkpoint = checkpoint
        self._ahead = {each for each in orjson.loads(checkpoint.ahead) if isinstance(each, int)}

    def rows(self, read: Read, most: int) -> list[Place]:
        """Up to so many rows, such as are not published."""
        some = min(most + len(self._ahead), max(self._kept, most))
        self._read = list(read(*self.place, some))
        return [place for place in self._read if place.position not in self._ahead]

    def is_published(self, position: int) -> bool:
        """Whether the row at ``position``, behind the checkpoint, is published."""
        return position in self._ahead

    def confirmed(self, positions: Collection[int]) -> Checkpoint:
        """The checkpoint to store, now that the broker has confirmed these; the rest of what was read is to be read again.

        It reaches up to the first row that isn't confirmed, and names those behind it that are.
        """
        self._ahead |= set(positions)
        transaction, position = self.place
        for place in self._read:
            if place.position not in self._ahead:
                break
            self._ahead.discard(place.position)
            transaction, position = place.transaction, place.position
        return Checkpoint(transaction, position, orjson.dumps(sorted(self._ahead)).decode())
