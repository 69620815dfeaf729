"""Names of outboxes and of sequences, ids of aggregates, and what a message's headers bring to its consumer."""

import re
from typing import Final

from oncegate.middleware.rules.key_text import aggregate_digest

NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HEADER_TEXT: Final = re.compile(r"[^\x00-\x1f\x7f\s]([^\x00-\x1f\x7f]*[^\x00-\x1f\x7f\s])?")


def check_name(what: str, name: object) -> str:
    """``name``. Raises ``ValueError`` for what is no name of an outbox or of a sequence."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(f"{what} has 1 to 64 letters, digits, '.', '_' and '-', not {name!r}")
    return name


def digest_of(aggregate: object) -> bytes:
    """`aggregate_digest` of an aggregate's id. Raises ``TypeError`` for what is no ``str``, ``ValueError`` for an empty one."""
    if not isinstance(aggregate, str):
        raise TypeError(f"the aggregate is a {type(aggregate).__name__}: give its id as a str")
    if not aggregate:
        raise ValueError("the aggregate's id is empty")
    return aggregate_digest(aggregate)


def check_header(what: str, value: str) -> None:
    """Raises ``ValueError`` where a header of a message would not bring ``value`` to its consumer as it is."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} holds half of a surrogate pair, which no header carries") from None
    if not _HEADER_TEXT.fullmatch(value):
        raise ValueError(
            f"{what} is empty, holds control characters, or begins or ends with white space: no header carries it"
        )
