"""A cache under test, whose time can be advanced, and the steps that the suites of behaviours share."""

import os
from typing import Any, Protocol

from oncegate.cache.record import Claim, ClaimRequest, Record, State, StoredResponse, Trace
from oncegate.cache.store import Cache
from oncegate.cache.transitions import Resolution, ResolveRequest

SLACK_MS = 20_000
"""Real time that may pass within a test without changing its outcome; leases in tests are longer than this."""


class Store(Protocol):
    """A cache, a key in it that no other test uses, and the passage of time."""

    @property
    def cache(self) -> Cache:
        """The cache under test, empty at ``key``."""
        ...

    @property
    def key(self) -> str:
        """A look-up key, ``namespace:part:part``."""
        ...

    def pass_time(self, milliseconds: int) -> None:
        """Let the key's record grow older."""
        ...


A, B, C = (os.urandom(16) for _ in range(3))
PRINT, OTHER_PRINT = b"p" * 16, b"q" * 16
LEASE, RETENTION, TTL = 100_000, 400_000, 900_000
RETRY = frozenset({State.FAILED, State.UNKNOWN})
RESPONSE = StoredResponse(
    201, ((b"x-a", b"1"), (b"x-a", b"2"), (b"x-\xe9", b"\xff")), b"\x00\xffbody", 1_700_000_000_000
)
FOUND_OUT = StoredResponse(201, ((b"content-type", b"application/json"),), b'{"id":1}', 1_800_000_000_000)
OUTCOMES = (State.SUCCEEDED, State.FAILED, State.UNKNOWN)


async def claim(store: Store, token: bytes, takeover: frozenset[State] = frozenset(), **changes: object) -> Claim:
    """A claim by ``token``."""
    arguments = {"fingerprint": PRINT, "lease_ms": LEASE, "retention_ms": RETENTION, **changes}
    return await store.cache.claim(store.key, ClaimRequest(token=token, takeover=takeover, **arguments))  # type: ignore[arg-type]  # a test's own


async def complete(
    store: Store, token: bytes, state: State = State.SUCCEEDED, attempt: int = 1, **changes: Any
) -> bool:
    """The outcome that ``token`` gives."""
    record = Record(state, token, PRINT, attempt, **{"response": RESPONSE, **changes})
    return await store.cache.complete(store.key, record, ttl_ms=TTL)


async def resolve(store: Store, state: State | None, **more: Any) -> Resolution:
    """An operator's resolution."""
    response = FOUND_OUT if state is State.SUCCEEDED else None
    return await store.cache.resolve(store.key, ResolveRequest(state, **{"response": response, "ttl_ms": TTL, **more}))


async def held_in(store: Store) -> Claim:
    """The record that is there."""
    held = await store.cache.get(store.key)
    assert held is not None
    return held


async def leave(store: Store, milliseconds: int) -> None:
    """Let time pass until the record has this much left to live."""
    store.pass_time((await held_in(store)).remaining_ms - milliseconds)


async def seen(store: Store) -> tuple[Record, Trace] | None:
    """All that can be seen of the record."""
    held = await store.cache.get(store.key)
    return None if held is None else (held.record, held.record.trace)


async def reads(store: Store) -> State:
    """How the record reads."""
    held = await store.cache.get(store.key)
    return State.ABSENT if held is None else held.record.state


def about(actual: int, expected: int) -> bool:
    """Whether a remaining time is ``expected``, less what may have passed on the store's clock; never more."""
    return expected - SLACK_MS < actual <= expected


async def bring_to(store: Store, state: State, *, lapsed: bool = False) -> None:
    """A record in ``state`` whose last owner is A."""
    if state is State.ABSENT:
        return
    await claim(store, A)
    if state is State.UNKNOWN and lapsed:
        await leave(store, RETENTION - 1)
    elif state is not State.IN_FLIGHT:
        assert await complete(store, A, state)
    assert await reads(store) is state
