"""A process whose callers claim the same keys as those of others: ``python -m tests.cache.sql.racer URL KEYS CALLERS SEED LOG``.

Each claim that is won, and each success that is recorded, is a line of ``LOG`` before anything else happens. It ends once every
key has succeeded.
"""

import asyncio
import os
import random
import sys

from oncegate.cache.errors import CacheUnavailable
from oncegate.cache.record import ClaimRequest, Record, State
from oncegate.cache.sql.store import SqlCache

PRINT = b"p" * 16
TAKEOVER = frozenset({State.FAILED, State.UNKNOWN})
LEASE_MS, RETENTION_MS, TTL_MS = 400, 600_000, 600_000


async def race(cache: SqlCache, keys: list[str], log: int, chance: random.Random) -> None:
    """One caller."""
    left = set(keys)
    while left:
        key = chance.choice(sorted(left))
        token = os.urandom(16)
        try:
            claim = await cache.claim(key, ClaimRequest(token, PRINT, LEASE_MS, RETENTION_MS, TAKEOVER))
            if not claim.won:
                if claim.record.state is State.SUCCEEDED:
                    left.discard(key)
                await asyncio.sleep(0)
                continue
            os.write(log, f"won {key} {claim.record.attempt} {token.hex()}\n".encode())
            draw = chance.random()
            if draw < 0.15:
                continue  # its lease ends, and somebody takes over
            state = State.FAILED if draw < 0.4 else State.SUCCEEDED
            recorded = await cache.complete(key, Record(state, token, PRINT, claim.record.attempt), ttl_ms=TTL_MS)
            if recorded and state is State.SUCCEEDED:
                os.write(log, f"succeeded {key} {claim.record.attempt} {token.hex()}\n".encode())
        except CacheUnavailable:
            await asyncio.sleep(0.01)


async def main(url: str, keys: int, callers: int, seed: int, path: str) -> None:
    """Until every key has succeeded."""
    cache = SqlCache.from_url(url, timeout=20)
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    names = [f"race:{number}:caller" for number in range(keys)]
    await asyncio.gather(*(race(cache, names, log, random.Random(seed * 1000 + each)) for each in range(callers)))
    await cache.close()


if __name__ == "__main__":
    _, address, how_many, of_callers, chance_of, written = sys.argv
    asyncio.run(main(address, int(how_many), int(of_callers), int(chance_of), written))
