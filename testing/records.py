"""Records as a test looks at them, and as another process takes them over."""

from oncegate.cache.record import Claim, ClaimRequest, State
from oncegate.cache.store import Cache
from testing.waiting import until

SUCCESSOR = b"the next owner's"
"""The token of who takes a record over."""
LONG_MS = 600_000


async def read(cache: Cache, key: str) -> Claim:
    """The record under ``key``, which is there."""
    found = await cache.get(key)
    assert found is not None, "there is no record"
    return found


async def take_over(
    cache: Cache, key: str, *, token: bytes = SUCCESSOR, lease_ms: int = LONG_MS, retention_ms: int = LONG_MS
) -> None:
    """Claim the record in another process's name, as soon as its lease has lapsed."""
    fingerprint = (await read(cache, key)).record.fingerprint
    takeover = frozenset({State.FAILED, State.UNKNOWN})

    async def won() -> bool:
        return (await cache.claim(key, ClaimRequest(token, fingerprint, lease_ms, retention_ms, takeover))).won

    await until(won, "its lease has lapsed")
