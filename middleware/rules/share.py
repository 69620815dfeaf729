"""The share of the keys that is under enforcement: which side a key is on, by the key alone.

So all requests with a key are on one side, in every process, under whichever secret and whoever sends them; and a share that
grows takes keys in, and lets none go.
"""
# Compiled: docs/decisions/0012-compiled.md

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any, Final

from oncegate.middleware.rules.errors import KeyInvalid
from oncegate.middleware.rules.keys.key import pick, read_key
from oncegate.middleware.rules.policy import Policy

_PERSON: Final = b"oncegate enforce"
_HUNDREDTH: Final = 2.0**64 / 100.0


def is_within(key: str, percent: float) -> bool:
    """Whether ``key`` is among the ``percent`` of all keys that are under enforcement."""
    place = int.from_bytes(blake2b(key.encode(), digest_size=8, person=_PERSON).digest(), "big")
    return float(place) < percent * _HUNDREDTH


def is_enforced(policy: Policy, headers: Iterable[Sequence[Any]]) -> bool:
    """Whether a request with these field lines is under enforcement, where only a part of the keys is.

    One without a key, or without one that can be read, is not.
    """
    percent: float = policy.settings.enforce
    if percent <= 0.0:
        return False
    try:
        found = read_key(pick(headers, policy.wanted), policy.key_names)
    except KeyInvalid:
        return False
    return found is not None and is_within(found[0], percent)
