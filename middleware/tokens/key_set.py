"""The keys of an issuer (RFC 7517), each with what it may verify: by its own kind and words, never by a token's. No I/O."""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

log = logging.getLogger("oncegate.tokens")

MAX_BYTES = 262_144
MAX_KEYS = 100
"""Issuers publish a handful; each takes some 50 us to be read."""
_TRIES = 4
"""Keys that a token without a key's id is tried with: each takes some 0.4 ms of the event loop."""
_LEAST_RSA_BITS = 2048
_MOST_RSA_BITS = 8192

_BY_CURVE = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512", "Ed25519": "EdDSA", "Ed448": "EdDSA"}
_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_SECRET = ("HS256", "HS384", "HS512")
_PUBLIC_MEMBERS = {"RSA": ("n", "e"), "EC": ("crv", "x", "y"), "OKP": ("crv", "x"), "oct": ("k",)}


class UnusableKeys(ValueError):
    """The document holds no usable keys. The text is one line, and holds nothing of them."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key that verifies. ``material`` is as PyJWT takes it; ``algorithms`` those that it is for, and that are allowed."""

    identifier: str | None
    algorithms: tuple[str, ...]
    material: Any


class KeySet:
    """The keys that count."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self._keys: dict[str | None, list[Key]] = {}
        for key in keys:
            self._keys.setdefault(key.identifier, []).append(key)

    def __len__(self) -> int:
        return sum(map(len, self._keys.values()))

    def knows(self, identifier: str | None) -> bool:
        """Whether there is a key with this id."""
        return identifier is not None and identifier in self._keys

    def find(self, identifier: str | None, algorithm: str) -> Sequence[Key]:
        """The keys with this id (for ``None``: with any, since a token needs not name its key) that are for ``algorithm``."""
        named = self._keys.get(identifier, ()) if identifier is not None else chain.from_iterable(self._keys.values())
        return [key for key in named if algorithm in key.algorithms][:_TRIES]


def parse_keys(document: bytes, allowed: Sequence[str]) -> KeySet:
    """The keys of a JWK set that verify by one of the ``allowed`` algorithms. Raises `UnusableKeys` where there is none."""
    if len(document) > MAX_BYTES:
        raise UnusableKeys(f"has more than {MAX_BYTES} bytes")
    try:
        members = json.loads(document)
    except (ValueError, RecursionError):
        raise UnusableKeys("is no JSON") from None
    listed = members.get("keys") if isinstance(members, dict) else None
    if not isinstance(listed, list):
        raise UnusableKeys('is no JWK set: {"keys": [...]}')
    if len(listed) > MAX_KEYS:
        raise UnusableKeys(f"holds more than {MAX_KEYS} keys")
    keys = [key for each in listed if (key := _key(each, allowed)) is not None]
    if not keys:
        raise UnusableKeys(f"holds no key that verifies by {', '.join(allowed)}")
    return KeySet(keys)


def _key(members: Any, allowed: Sequence[str]) -> Key | None:
    """One key; ``None`` for one that verifies nothing here: for encryption, of another kind, too weak, damaged."""
    if not isinstance(members, dict) or not _verifies(members):
        return None
    kind = members.get("kty")
    own = members.get("alg")
    algorithms = tuple(each for each in _algorithms(members) if each in allowed and own in (None, each))
    if not algorithms or not isinstance(kind, str):
        return None
    try:
        public = {name: members[name] for name in ("kty", *_PUBLIC_MEMBERS[kind])}
        material = _material(public, algorithms[0])
    except Exception:  # noqa: BLE001 - whatever a damaged key makes of PyJWT and cryptography: the others count
        log.warning("a key of jwks is damaged, or too weak: it counts for nothing")
        return None
    if kind == "oct":  # RFC 7518 section 3.2: as long as the hash
        algorithms = tuple(each for each in algorithms if 8 * len(material) >= int(each.removeprefix("HS")))
        if not algorithms:
            return None
    identifier = members.get("kid")
    return Key(identifier if isinstance(identifier, str) else None, algorithms, material)


def _verifies(members: Mapping[str, Any]) -> bool:
    operations = members.get("key_ops")
    return members.get("use", "sig") == "sig" and (
        operations is None or (isinstance(operations, list) and "verify" in operations)
    )


def _algorithms(members: Mapping[str, Any]) -> Sequence[str]:
    """The algorithms that a key of this kind is for (RFC 7518 section 3.1).

    A secret verifies no signature, and a public key is no secret.
    """
    kind, curve = members.get("kty"), members.get("crv")
    if kind == "RSA":
        return _RSA
    if kind == "oct":
        return _SECRET
    named = _BY_CURVE.get(curve) if isinstance(curve, str) else None
    fits = named is not None and (named == "EdDSA") is (kind == "OKP") and kind in ("EC", "OKP")
    return (named,) if fits and named is not None else ()


def _material(members: dict[str, Any], algorithm: str) -> Any:
    from jwt import PyJWK  # where tokens are configured, and nowhere else

    key = PyJWK(members, algorithm).key
    if members["kty"] == "RSA" and not _LEAST_RSA_BITS <= key.key_size <= _MOST_RSA_BITS:
        raise UnusableKeys("is too weak, or takes too long")
    return key
