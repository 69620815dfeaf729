"""An entry's id in a Redis stream: its grammar, and the time in it."""

import re

ENTRY_ID = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")


def added_at_ms(entry: bytes) -> int | None:
    """The time at which the entry was added, in Unix ms, unless its producer chose its id; ``None`` where that has no number."""
    milliseconds = entry.partition(b"-")[0]
    return int(milliseconds) if milliseconds.isdigit() else None
