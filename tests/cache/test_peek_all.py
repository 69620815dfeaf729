"""Many records looked at in one step, in every cache: each as one look would have it, and a damaged one in nobody's way."""

import os

from oncegate.cache.errors import RecordUnreadable
from oncegate.cache.record import Claim, ClaimRequest
from oncegate.cache.store import peek_all
from tests.cache.stores import Store


async def test_a_damaged_record_is_an_error_in_its_own_place(store: Store) -> None:
    missing, held = f"{store.key}-missing", f"{store.key}-held"
    token = os.urandom(16)
    await store.cache.claim(held, ClaimRequest(token, b"p" * 16, 60_000, 60_000))
    store.plant(b"no record of ours", 60_000)
    damaged, nothing, found = await peek_all(store.cache, [store.key, missing, held])
    assert isinstance(damaged, RecordUnreadable)
    assert nothing is None
    assert isinstance(found, Claim)
    assert found.record.token == token
