"""The books of the demo's payments service, in a file that outlasts its process: what arrived there, and what was booked."""

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

MOST_SHOWN = 50
_MOST_TEXT = 200
"""Characters that are kept of a key and of a body."""


@dataclass(slots=True)
class BookEntry:
    """A POST that arrived: its ``number`` counts from 1, ``payment`` is what was booked for it, ``None`` where nothing was."""

    number: int
    key: str
    path: str
    body: str
    payment: dict[str, Any] | None = None


class Books:
    """Entries in the order of their arrival. Each line of ``file`` is there before the call that makes it returns.

    ``file``: where they are kept, and read from at the start; ``None``: in memory alone.
    """

    def __init__(self, file: Path | None = None) -> None:
        self.entries: list[BookEntry] = []
        self.payments: list[dict[str, Any]] = []
        self._file = None
        if file is not None:
            for line in file.read_bytes().splitlines() if file.exists() else ():
                self._apply(orjson.loads(line))
            self._file = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def arrive(self, key: str, path: str, body: bytes) -> BookEntry:
        """Enter a POST that has arrived."""
        text = body.decode("utf-8", "replace")[:_MOST_TEXT]
        self._write({"number": len(self.entries) + 1, "key": key[:_MOST_TEXT], "path": path, "body": text})
        return self.entries[-1]

    def book(self, entry: BookEntry, amount: int) -> dict[str, Any]:
        """Make the payment of an entry; returns it."""
        payment = {"id": f"pay_{len(self.payments) + 1}", "amount": amount}
        self._write({"number": entry.number, "payment": payment})
        return payment

    def document(self) -> dict[str, Any]:
        """The books as JSON: how many POSTs arrived, how many were executed, the last `MOST_SHOWN` entries."""
        return {
            "arrived": len(self.entries),
            "executed": len(self.payments),
            "entries": [asdict(entry) for entry in self.entries[-MOST_SHOWN:]],
        }

    def _write(self, line: dict[str, Any]) -> None:
        if self._file is not None:
            os.write(self._file, orjson.dumps(line) + b"\n")
        self._apply(line)

    def _apply(self, line: dict[str, Any]) -> None:
        if "payment" in line:
            self.entries[line["number"] - 1].payment = line["payment"]
            self.payments.append(line["payment"])
        else:
            self.entries.append(BookEntry(**line))
