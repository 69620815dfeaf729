"""Derives keys for commands that an event triggers from the event's id, so that a redelivered event sends the same key."""

from hashlib import sha256
from uuid import UUID

_LABEL = b"oncegate.derive_key.1"
"""Hashed first. Keys that were sent must be made again years later: a change here, or below, is a new function."""


def derive_key(event_id: str, *names: str) -> str:
    """The idempotency key of the one command that ``names`` call, in reaction to the event ``event_id``.

    The same arguments give the same key, in every process and in every version of oncegate; others give another one.
    ``names`` say who reacts and with which step: ``derive_key(event.id, "billing", "charge")``. Give as many as it takes
    to tell one command from the next (an index, if a step sends several), and nothing that differs between two deliveries
    of the event: no time, no broker's delivery id, no attempt number.

    It is a UUID in lower case (RFC 9562 version 8, of SHA-256), 36 characters: a valid bare ``Idempotency-Key``, and short
    enough for APIs that take UUIDs only. Anybody who knows the parts can make it, so it proves nothing.

    Raises ``TypeError`` for a part that is not a string (``1`` and ``"1"`` would be one key), ``ValueError`` for an empty one,
    and without a name, since two consumers of one event would send the same key.
    """
    if not names:
        raise ValueError("derive_key needs a name beside the event's id: who reacts, and with which step")
    digest = sha256(_LABEL)
    for part in (event_id, *names):
        if not isinstance(part, str):
            raise TypeError(f"derive_key takes strings, not {type(part).__name__}: say how it is to be written")
        if not part:
            raise ValueError("derive_key takes no empty part: it would be the same key for every event that lacks it")
        octets = part.encode()
        digest.update(b"%d:%b" % (len(octets), octets))
    made = bytearray(digest.digest()[:16])
    made[6] = made[6] & 0x0F | 0x80
    made[8] = made[8] & 0x3F | 0x80
    return str(UUID(bytes=bytes(made)))
