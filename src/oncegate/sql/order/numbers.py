"""Which message about which aggregate: the id's digest, and the number. What is neither is refused for good, on one line."""

from dataclasses import dataclass

from oncegate.middleware.consumers.sql_interface import MAX_SEQUENCE, KeyInvalid, aggregate_digest, key_text
from oncegate.sql.database.errors import SequenceForked, SequenceInvalid


@dataclass(frozen=True, slots=True)
class Numbered:
    """A message with its place: the digest of its aggregate's id, and its number.

    ``parked`` is the consumer in whose name it was parked, where that is where it comes from. ``other`` is its id and its
    fingerprint by the other secret, while two are in use.
    """

    aggregate: bytes
    sequence: int
    record: str = ""
    fingerprint: bytes | None = None
    parked: str = ""
    other: tuple[str, bytes | None] | None = None

    def check_same(self, record: str | None) -> None:
        """Raises `SequenceForked` where ``record`` is another message's id. Without ids nothing tells them apart."""
        own = (self.record, "" if self.other is None else self.other[0])
        if record and self.record and record not in own:
            raise SequenceForked(f"record {self.record}: record {record} has the same number of the same aggregate")


def digest(aggregate: object) -> bytes:
    """The digest of an aggregate's id. Raises `SequenceInvalid`, without the id."""
    return aggregate_digest(aggregate_text(aggregate))


def aggregate_text(aggregate: object) -> str:
    """An aggregate's id as text. Raises `SequenceInvalid`."""
    try:
        text = key_text(aggregate, "aggregate's id")
    except KeyInvalid as error:
        raise SequenceInvalid(str(error)) from None
    if not text:
        raise SequenceInvalid("The message has no aggregate, and the inbox keeps the order of each one's.")
    return text


def shown(aggregate: object) -> str:
    """An aggregate's id as it may be stored and printed; one that can't is escaped."""
    text = aggregate_text(aggregate).encode("utf-8", "backslashreplace").decode()
    return text.replace("\x00", "\\x00")  # PostgreSQL's text has none


def checked(sequence: object) -> int:
    """A message's number. Raises `SequenceInvalid`."""
    if sequence is None:
        raise SequenceInvalid("The message has no number, and the inbox keeps the order of its aggregate.")
    if not isinstance(sequence, int) or isinstance(sequence, bool) or not 0 < sequence <= MAX_SEQUENCE:
        raise SequenceInvalid("The message's number is no integer from 1 to 2**63 - 1.")
    return sequence
