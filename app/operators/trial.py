"""Checks that the cache takes records: claims, completes and removes a trial record in the service's own namespace."""

import os
import re
import secrets

from oncegate.cache.errors import CacheError, CacheRefused
from oncegate.cache.record import FINGERPRINT_BYTES, TOKEN_BYTES, ClaimRequest, Record, State
from oncegate.cache.store import Cache
from oncegate.cache.transitions import ResolveRequest
from oncegate.middleware.rules.key import key_of_id

LASTS_MS = 5000
"""For which the record is there at most, where it can't be removed any more."""

_WHAT_TO_DO = {
    "OOM": "raise maxmemory, or keep records for a shorter time (ttl)",
    "READONLY": "use the primary's address, or Sentinel's",
    "NOPERM": "let the user run EVALSHA and SCRIPT LOAD, and read and write the keys NAMESPACE:* and {NAMESPACE:*",
    "MISCONF": "see Redis's log and its disk: it takes writes again when it can save",
    "NOREPLICAS": "bring replicas back, or lower min-replicas-to-write",
    "CLUSTERDOWN": "see CLUSTER INFO: a part of the slots is served by nobody",
}


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
        kind = re.search(r"\b[A-Z]{3,}\b(?=$| \()", str(error))
        todo = _WHAT_TO_DO.get(kind[0]) if kind else None
        if todo is None:
            raise
        raise type(error)(f"{error}; {todo.replace('NAMESPACE', namespace)}") from error
