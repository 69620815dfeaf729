"""Whether a cache takes records: makes one, and removes it."""

import os
import secrets

from oncegate.cache.errors import CacheError, CacheRefused
from oncegate.cache.record import FINGERPRINT_BYTES, TOKEN_BYTES, ClaimRequest, Record, State
from oncegate.cache.store import Cache
from oncegate.cache.transitions import ResolveRequest
from oncegate.middleware.rules.keys.key import key_of_id

LASTS_MS = 5000
"""The record is removed at once; where that fails, it is gone after so long."""


async def try_writing(cache: Cache, namespace: str) -> None:
    """Make a record and remove it. Raises `CacheError`, whose text says what to do where that is known."""
    key = key_of_id(namespace, f"{secrets.token_hex(10)}:{secrets.token_hex(10)}")
    token, fingerprint = os.urandom(TOKEN_BYTES), bytes(FINGERPRINT_BYTES)
    try:
        claim = await cache.claim(
            key,
            ClaimRequest(token=token, fingerprint=fingerprint, lease_ms=LASTS_MS, retention_ms=0, takeover=frozenset()),
        )
        completed = claim.won and await cache.complete(
            key,
            Record(token=token, fingerprint=fingerprint, attempt=1, state=State.UNKNOWN, response=None),
            ttl_ms=LASTS_MS,
        )
        if not completed:
            raise CacheRefused("a new record was not taken: somebody else has it")
        await cache.resolve(key, ResolveRequest(None))
    except CacheError as error:
        notes = getattr(error, "__notes__", ())
        if not notes:
            raise
        raise type(error)("; ".join((str(error), *notes)).replace("NAMESPACE", namespace)) from error
