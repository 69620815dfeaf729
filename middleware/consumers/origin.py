"""What names a message beside its record: the broker's id and the correlation id, as they stand in logs and dead letters.

Both come from outside: they are kept on one line, in ASCII, and short.
"""

from typing import NamedTuple
from uuid import UUID

from oncegate.middleware.consumers.delivery import Delivery

MOST_CHARACTERS = 128


class Origin(NamedTuple):
    """A message's ids; empty where it has none, or where one is nothing but its key, which no log shows."""

    message_id: str = ""
    correlation: str = ""

    @property
    def line(self) -> str:
        """What stands behind the record's id in a line of the log."""
        message = f", message {self.message_id}" if self.message_id else ""
        return message + (f", correlation {self.correlation}" if self.correlation else "")


def origin_of(delivery: Delivery) -> Origin:
    """The ids of a delivery's message. Raises nothing, whatever the delivery holds."""
    key, message, correlation = (_shown(each) for each in (delivery.key, delivery.message_id, delivery.correlation))
    return Origin("" if message == key else message, "" if correlation == key else correlation)


def _shown(identifier: object) -> str:
    if isinstance(identifier, bytes | bytearray):
        text = bytes(identifier[:MOST_CHARACTERS]).decode("utf-8", "backslashreplace")
    elif isinstance(identifier, str | int | UUID):
        try:
            text = str(identifier)
        except ValueError:  # an integer of thousands of digits
            return ""
    else:
        return ""
    return text[:MOST_CHARACTERS].encode("unicode_escape").decode("ascii")
