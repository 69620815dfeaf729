"""A key, or a caller's name, given as a Python value, as text."""

from uuid import UUID

from oncegate.middleware.rules.errors import KeyInvalid

KeyText = str | bytes | int | UUID
"""What a key may be given as: text; bytes are taken as UTF-8, and an integer or a UUID by its spelling."""


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
