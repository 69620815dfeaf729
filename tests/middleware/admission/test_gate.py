"""The gate, as the table that it is: state, payload, body kept, and what was asked for.

Rules of docs/contract.md: R3.15, R5.13.
"""

import itertools

import pytest

from oncegate.cache.record import Record, State, StoredResponse
from oncegate.middleware.admission.gate import GateDecision, decide

OURS, OTHERS = b"f" * 16, b"g" * 16
BESIDE = b"f" * 10 + b"g" * 6
"""Of the same method and path as ours."""
WITH = StoredResponse(201, (), b"body", 0)
WITHOUT = StoredResponse(201, (), None, 0)
RESPONSES = (WITH, WITHOUT, None)

SAME = [
    (State.IN_FLIGHT, RESPONSES, False, GateDecision.IN_FLIGHT),
    (State.IN_FLIGHT, RESPONSES, True, GateDecision.IN_FLIGHT),
    (State.UNKNOWN, RESPONSES, False, GateDecision.REFUSE),
    (State.UNKNOWN, RESPONSES, True, GateDecision.REFUSE),
    (State.SUCCEEDED, (WITH,), False, GateDecision.REPLAY),
    (State.SUCCEEDED, (WITH,), True, GateDecision.DUPLICATE),
    (State.SUCCEEDED, (WITHOUT, None), False, GateDecision.DUPLICATE),
    (State.SUCCEEDED, (WITHOUT, None), True, GateDecision.DUPLICATE),
    (State.FAILED, (WITH,), False, GateDecision.REPLAY),
    (State.FAILED, (WITH,), True, GateDecision.REPLAY),
    (State.FAILED, (WITHOUT, None), False, GateDecision.DUPLICATE),
    (State.FAILED, (WITHOUT, None), True, GateDecision.DUPLICATE),
]


def record(state: State, response: StoredResponse | None, fingerprint: bytes = OURS) -> Record:
    return Record(state, b"t" * 16, fingerprint, 1, response)


@pytest.mark.parametrize(("state", "responses", "raising", "decision"), SAME)
@pytest.mark.parametrize("warn", [False, True])
def test_same_payload(
    state: State, responses: tuple[StoredResponse | None, ...], raising: bool, decision: GateDecision, warn: bool
) -> None:
    for response in responses:
        assert decide(record(state, response), OURS, warn_on_mismatch=warn, raise_on_duplicate=raising) is decision


def test_other_request_is_a_mismatch_in_every_state_and_form() -> None:
    states = (State.IN_FLIGHT, State.SUCCEEDED, State.FAILED, State.UNKNOWN)
    for state, response, raising in itertools.product(states, RESPONSES, (False, True)):
        found = record(state, response, OTHERS)
        assert decide(found, OURS, warn_on_mismatch=False, raise_on_duplicate=raising) is GateDecision.MISMATCH
        assert decide(found, OURS, warn_on_mismatch=True, raise_on_duplicate=raising) is GateDecision.MISMATCH
        beside = record(state, response, BESIDE)
        assert decide(beside, OURS, warn_on_mismatch=False, raise_on_duplicate=raising) is GateDecision.MISMATCH
        if state is not State.SUCCEEDED:
            assert decide(beside, OURS, warn_on_mismatch=True, raise_on_duplicate=raising) is GateDecision.MISMATCH


def test_other_payload_under_warn_is_judged_like_the_same_one_where_it_succeeded() -> None:
    for response, raising in itertools.product(RESPONSES, (False, True)):
        same, other = (record(State.SUCCEEDED, response, fingerprint) for fingerprint in (OURS, BESIDE))
        decisions = {decide(found, OURS, warn_on_mismatch=True, raise_on_duplicate=raising) for found in (same, other)}
        assert len(decisions) == 1
        assert GateDecision.MISMATCH not in decisions
