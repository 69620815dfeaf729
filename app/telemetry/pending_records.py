"""The records whose outcome only one worker knows, in shared memory: when it is killed, its parent can still name them.

An attempt that runs for long is noted, and an outcome that waits for the cache; what ends within a second, as most does, is
not, since it would cost each request.
"""

import mmap
from typing import Final

SLOTS: Final = 256
"""Records that are noted of each worker."""
_WIDTH: Final = 64
"""Bytes of each; a record's id has 41."""


class PendingRecords:
    """A table of ``SLOTS`` ids for each of ``rows`` workers; a row has one writer. To be made before workers are forked."""

    def __init__(self, rows: int) -> None:
        self._all = mmap.mmap(-1, max(1, rows) * SLOTS * _WIDTH)
        self._noted: dict[str, tuple[int, int]] = {}  # by id: its slot, and for how many reasons it is noted
        self._free: list[int] = []
        self.enter(0)

    def enter(self, row: int) -> None:
        """This process writes into ``row`` from now on, and finds it empty."""
        self._noted = {}
        self._free = list(range((row + 1) * SLOTS - 1, row * SLOTS - 1, -1))
        self.clear(row)

    def note(self, record: str) -> None:
        """This process is the only one that will know of the record's outcome, until `drop`."""
        slot, reasons = self._noted.get(record, (-1, 0))
        if reasons == 0 and self._free:
            slot = self._free.pop()
            self._write(slot, record.encode()[:_WIDTH])
        self._noted[record] = slot, reasons + 1

    def drop(self, record: str) -> None:
        """Remove one reason; without any left the record is removed."""
        slot, reasons = self._noted.pop(record, (-1, 0))
        if reasons > 1:
            self._noted[record] = slot, reasons - 1
        elif slot >= 0:
            self._write(slot, b"")
            self._free.append(slot)

    def of(self, row: int) -> list[str]:
        """The ids noted in ``row``, which another process may have written."""
        first = row * SLOTS * _WIDTH
        slots = (self._all[at : at + _WIDTH] for at in range(first, first + SLOTS * _WIDTH, _WIDTH))
        return [slot.rstrip(b"\0").decode(errors="replace") for slot in slots if slot[0]]

    def clear(self, row: int) -> None:
        """Forget ``row``."""
        size = SLOTS * _WIDTH
        self._all[row * size : (row + 1) * size] = bytes(size)

    def _write(self, slot: int, text: bytes) -> None:
        self._all[slot * _WIDTH : (slot + 1) * _WIDTH] = text.ljust(_WIDTH, b"\0")
