"""How audit lines name what was changed in a database: by the command line, by the API and by the console in the same words."""

from collections.abc import Sequence
from typing import Any

SKIPPED, RETRIED, DISCARDED = "skipped", "retried", "discarded"
BODY_SHOWN = "its key and body shown"


def number_line(consumer: str, aggregate: str, sequence: int | None) -> str:
    """A number of an aggregate, as audit lines name it; ``None`` where it is not known."""
    number = "the failed number" if sequence is None else f"number {sequence}"
    return f"{number} of {aggregate} at {consumer}"


def messages_line(count: int | None, numbers: Sequence[int]) -> str:
    """Messages of an outbox that are tried again, ``numbers`` or all that are dead."""
    which = f"messages {', '.join(map(str, numbers)) or '(all dead)'} of the outbox"
    return which if count is None else f"{count} of {which}"


def message_line(message: dict[str, Any]) -> str:
    """A message of an outbox."""
    place = "" if message["aggregate"] is None else f", number {message['sequence']} of {message['aggregate']}"
    return f"{message['id']} of {message['outbox']} to {message['topic']}{place}"


def event_line(projection: str, position: int) -> str:
    """The event of a projection."""
    return f"position {position} of projection {projection}"
