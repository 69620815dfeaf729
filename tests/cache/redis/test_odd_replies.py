"""Replies that no script of ours gives: whoever asked is told, since nobody would ask Redis again for him."""

from typing import Any

import pytest

from oncegate.cache.errors import RecordUnreadable
from oncegate.cache.record import Claim, ClaimRequest
from oncegate.cache.redis.calls import ClaimCall

ODD = [None, 0, 7, b"x", [], [0], [1, None, 5], [0, b"x", None], [0, "x", 5], [0, b"x", 5, 6], [0, b"x", b"5"], b"abc"]


@pytest.mark.parametrize("reply", ODD)
def test_an_odd_reply_to_a_claim_is_told_as_an_unreadable_record(reply: Any) -> None:
    outcomes: list[Claim | Exception] = []
    routes: Any = None  # nothing is asked of them
    claim = ClaimCall(routes, "k", ClaimRequest(bytes(16), bytes(16), 1, 0), None, outcomes.append, None, False)
    claim.answered(reply)
    assert len(outcomes) == 1
    assert isinstance(outcomes[0], RecordUnreadable)
