"""Replies that no script of ours gives: whoever asked is told, since nobody would ask Redis again for him."""

from typing import Any

import pytest

from oncegate.cache.errors import CacheError, RecordUnreadable
from oncegate.cache.record import Claim, ClaimRequest
from oncegate.cache.redis.calls import PendingClaim

ODD = [None, 0, 7, b"x", [], [0], [1, None, 5], [0, b"x", None], [0, "x", 5], [0, b"x", 5, 6], [0, b"x", b"5"], b"abc"]


@pytest.mark.parametrize("reply", ODD)
def test_an_odd_reply_to_a_claim_is_told_as_an_unreadable_record(reply: Any) -> None:
    told: list[Claim | CacheError] = []
    routes: Any = None  # nothing is asked of them
    claim = PendingClaim(routes, b"k", ClaimRequest(bytes(16), bytes(16), 1, 0), 1, None, told.append)
    claim.answered(reply)
    assert len(told) == 1
    assert isinstance(told[0], RecordUnreadable)
