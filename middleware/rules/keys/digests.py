"""Digests of keys, callers and fingerprints: BLAKE2b, keyed with the deployment's secret where there is one.

Without a secret, who reads a record's address or its fingerprint can test guesses of what was digested; with one, only who has
it can (BLAKE2b's keyed mode, RFC 7693 section 2.9, with 64 bytes derived from the secret; each purpose has its own octet).
States are kept to be copied, which takes less than to make one.
"""
# Compiled: docs/decisions/0012-compiled.md

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final

from oncegate.cache.record import FINGERPRINT_BYTES

NAME_BYTES: Final = 15
"""120 bits: no collision to be feared, and exactly 20 base64 characters without padding."""
OPERATION_BYTES: Final = 10
LEAST_SECRET_BYTES: Final = 32
MOST_KNOWN: Final = 1024
LONGEST_KNOWN: Final = 512
"""So many callers are known for each name of a field, by a value of so many bytes at most: half a MiB."""
_PURPOSE: Final = b"oncegate"
_MOST_SECRETS: Final = 2

Secret = str | bytes | None
"""A text of 32 bytes or more; ``None``: digests are not keyed."""
Secrets = Secret | Sequence[Secret]
"""One, or two while one replaces the other: what is new is addressed by the first, and what the second addressed is found."""


class Digests:
    """A deployment's blank states: of a ``name`` (a key, a caller's scope), of a whole ``payload`` and of an ``operation``;
    ``unscoped`` is the digest of no caller. ``former`` are those of the other secret, while one replaces the other.

    ``callers`` has those of the last callers who were named by one field, spelled: by its name, then by its value. Most callers
    come again, and their digest takes as long as a key's.
    """

    __slots__ = ("callers", "former", "name", "operation", "payload", "unscoped")

    def __init__(self, secret: bytes = b"", former: "Digests | None" = None) -> None:
        self.former = former
        self.callers: dict[bytes, dict[bytes, str]] = {}
        self.name = _blank(secret, b"n", NAME_BYTES)
        self.unscoped: bytes = self.name.digest()
        self.payload = _blank(secret, b"p", FINGERPRINT_BYTES)
        self.operation = _blank(secret, b"o", OPERATION_BYTES)

    def know_caller(self, name: bytes, value: bytes, spelled: str) -> None:
        """Keep a caller's digest among ``callers``, for a while."""
        if len(value) > LONGEST_KNOWN:
            return
        known = self.callers.setdefault(name, {})
        if len(known) >= MOST_KNOWN:
            known.clear()
        known[value] = spelled


def _blank(secret: bytes, purpose: bytes, size: int) -> blake2b:
    if not secret:
        return blake2b(digest_size=size)
    key = blake2b(secret, digest_size=64, person=_PURPOSE).digest()
    return blake2b(purpose, digest_size=size, key=key)


UNKEYED: Final = Digests()


def given_digests(secret: Any) -> Digests:
    """The digests by ``secret``, a `Secrets`. Raises ``TypeError`` or ``ValueError``, which never quotes one."""
    given = [secret] if secret is None or isinstance(secret, str | bytes) else secret
    if not isinstance(given, Sequence):
        raise TypeError(f"secret is a {type(secret).__qualname__}: give a text, or a list of two")
    if not 1 <= len(given) <= _MOST_SECRETS:
        raise ValueError("secret: give one, or two while one replaces the other")
    octets = [_octets(each) for each in given]
    if len(set(octets)) != len(octets):
        raise ValueError("secret: the two are the same")
    if octets == [b""]:
        return UNKEYED
    return Digests(octets[0], Digests(octets[1]) if len(octets) == _MOST_SECRETS else None)


def have_same_secrets(one: Digests, other: Digests) -> bool:
    """Whether both are by the same secrets, whichever comes first."""
    return _of_nothing(one) == _of_nothing(other)


def _of_nothing(digests: Digests) -> set[bytes]:
    return {each.name.digest() for each in (digests, digests.former) if each is not None}


def _octets(secret: object) -> bytes:
    if secret is None:
        return b""
    if not isinstance(secret, str | bytes):
        raise TypeError(f"a secret is a {type(secret).__qualname__}: give a text")
    octets = secret.encode("utf-8", "surrogateescape") if isinstance(secret, str) else secret
    if len(octets) < LEAST_SECRET_BYTES:
        raise ValueError(f"a secret has {LEAST_SECRET_BYTES} bytes or more: `openssl rand -hex 32` makes one")
    return octets
