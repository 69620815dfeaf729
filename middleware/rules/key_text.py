"""A key, a caller's name or an aggregate's id, given as a Python value, as text; and the digest of such an id."""

from hashlib import blake2b
from typing import Final
from uuid import UUID

from oncegate.middleware.rules.errors import KeyInvalid

KeyText = str | bytes | int | UUID
"""What a key may be given as: text; bytes are taken as UTF-8, and an integer or a UUID by its spelling."""


_AGGREGATE_BYTES: Final = 20


def aggregate_digest(aggregate: str) -> bytes:
    """The digest of an aggregate's id, of exactly its code points: by it aggregates are told apart wherever they have numbers.

    No case, white space, Unicode form, length or collation makes one of two.
    """
    # A lone surrogate has no UTF-8, and is an id like any other.
    return blake2b(aggregate.encode("utf-8", "surrogatepass"), digest_size=_AGGREGATE_BYTES).digest()


def key_text(value: object, what: str) -> str:
    """``value`` as text. Raises `KeyInvalid`, which says ``what`` is wrong, without the value."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise KeyInvalid(f"The {what} is given as bytes that are no UTF-8.") from None
    if isinstance(value, int | UUID) and not isinstance(value, bool):
        try:
            return str(value)
        except ValueError:  # Python spells no integer of thousands of digits
            raise KeyInvalid(f"The {what} is too long.") from None
    raise KeyInvalid(f"The {what} is of type {type(value).__name__}: give text.")
