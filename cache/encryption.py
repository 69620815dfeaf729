"""Encryption at rest: AES-256-GCM by `cryptography` (the extra ``encrypt``), bound to where the ciphertext is.

What is encrypted is written as version, length of the key's id, the key's id, a random nonce of 96 bits, ciphertext with its
tag. The associated data are the address, so that what is moved elsewhere doesn't open. At 2**32 encryptions by one key the
chance that a nonce came twice is below 2**-32 (NIST SP 800-38D, section 8.3): by then a key is to be replaced.
"""
# Compiled: docs/decisions/0012-compiled.md

import asyncio
import re
from base64 import b64decode
from binascii import Error
from collections.abc import Callable, Sequence
from os import urandom
from typing import Any, Final, TypeVar

from oncegate.cache.errors import RecordUnreadable

_VERSION: Final = 1
_NONCE_BYTES: Final = 12
_KEY_BYTES: Final = 32
_HEAD_BYTES: Final = 2
OFF_LOOP_BYTES: Final = 262144
"""The size above which a thread encrypts and decrypts: 1 MiB takes 1 to 4 ms, in which an event loop would serve nobody else.
`cryptography` lets go of the GIL meanwhile. The way to a thread and back takes as long as some 256 KiB do."""
Made = TypeVar("Made")

CLEAR: Final = "none"
"""In the place of the first key: what is written stays in clear."""
_is_id: Final = re.compile(r"[A-Za-z0-9_.-]{1,32}").fullmatch


class Encryption:
    """Encryption by the first of ``keys``, and decryption by the one that the ciphertext names; ``id:base64`` of 32 bytes each.

    ``none`` as the first one: nothing is encrypted yet. Raises ``ValueError``, which quotes no key.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        ciphers: dict[bytes, Any] = {}
        own = b""
        for number, each in enumerate(keys):
            if each == CLEAR and number == 0:
                continue
            name, cipher = _parse(each)
            if name in ciphers:
                raise ValueError("encryption_keys: two have one id")
            ciphers[name] = cipher
            if number == 0:
                own = name
        if not ciphers:
            raise ValueError("encryption_keys: there is no key among them")
        # In one piece, since threads encrypt while it is replaced: the id of the key that encrypts, and all by their ids.
        self._keys: tuple[bytes, dict[bytes, Any]] = own, ciphers

    def replace(self, other: "Encryption") -> None:
        """The keys of ``other`` count from now on."""
        self._keys = other._keys

    @property
    def encrypts(self) -> bool:
        """Whether what is written is encrypted."""
        return self._keys[0] != b""

    def encrypt(self, plain: bytes, *address: bytes) -> bytes:
        """``plain``, to be opened at ``address`` alone."""
        (own, ciphers), nonce = self._keys, urandom(_NONCE_BYTES)
        cipher = ciphers[own].encrypt(nonce, plain, _joined(address))
        return bytes((_VERSION, len(own))) + own + nonce + bytes(cipher)

    def decrypt(self, encrypted: bytes, *address: bytes) -> bytes:
        """The bytes that were encrypted for ``address``. Raises `RecordUnreadable`."""
        if len(encrypted) < _HEAD_BYTES or encrypted[0] != _VERSION:
            raise RecordUnreadable("what is encrypted is damaged, or of a newer version")
        end = _HEAD_BYTES + encrypted[1]
        cipher = self._keys[1].get(encrypted[_HEAD_BYTES:end])
        if cipher is None:
            raise RecordUnreadable("it is encrypted by a key that is not among encryption_keys")
        nonce, rest = encrypted[end : end + _NONCE_BYTES], encrypted[end + _NONCE_BYTES :]
        try:
            return bytes(cipher.decrypt(nonce, rest, _joined(address)))
        except Exception as error:  # InvalidTag, or ValueError for what is cut short
            raise RecordUnreadable("what is encrypted was damaged, or is another record's") from error


async def off_loop(size: int, function: Callable[..., Made], *arguments: Any) -> Made:
    """Call ``function``, which encrypts or decrypts ``size`` bytes: in a thread, if these are many."""
    if size > OFF_LOOP_BYTES:
        return await asyncio.to_thread(function, *arguments)
    return function(*arguments)


def _joined(parts: Sequence[bytes]) -> bytes:
    return b"".join([b"%d:%b" % (len(part), part) for part in parts])


def _parse(key: str) -> tuple[bytes, Any]:
    name, _, encoded = key.partition(":")
    try:
        octets = b64decode(encoded, validate=True)
    except (Error, ValueError):
        octets = b""
    if not _is_id(name) or len(octets) != _KEY_BYTES:
        raise ValueError(
            "encryption_keys: a key is written id:base64, of 32 bytes: `openssl rand -base64 32` makes them"
        )
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise ValueError("encryption_keys: needs the extra: pip install oncegate[encrypt]") from None
    return name.encode(), AESGCM(octets)


def given_encryption(keys: Sequence[str]) -> Encryption | None:
    """The encryption by ``keys``, ``None`` without any. Raises ``TypeError``, ``ValueError``."""
    if isinstance(keys, str):
        raise TypeError("encryption_keys is a str: give a list")
    return Encryption(keys) if keys else None
