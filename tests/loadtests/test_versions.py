"""The small form of `loadtests.versions`: writers with expected versions, on gateways that are killed.

Rules of docs/contract.md: R8.28, R8.30, R8.31.
"""

from loadtests import versions


def test_every_request_is_accepted_or_a_conflict_and_no_author_meets_his_own() -> None:
    counts = versions.run(writers=4, aggregates=5, rounds=4, gateways=2, kills=1, pause=0.3)
    assert counts["accepted"] == 4 * 5 * 4
    assert counts["aggregates"] == 5
    assert counts["conflicts"] > 0
