"""Who may take over a submission that nobody knows the end of: another submission, whatever the policy says, and nobody else."""

import os

import pytest

from oncegate.cache.record import ClaimRequest, State
from oncegate.middleware.admission.admission import AdmissionRequest, Admissions, Verdict
from oncegate.middleware.admission.attempt import Attempt
from oncegate.middleware.admission.gate import Decision
from oncegate.middleware.rules.policy import compile_policy
from oncegate.middleware.rules.settings import IdempotencySettings
from tests.cache.stores import Store

PRINT = b"p" * 16
POLICY = compile_policy(IdempotencySettings(on_unknown="refuse"))
RETENTION = POLICY.retention_ms


async def lapsed(store: Store, *, submission: bool) -> None:
    claim = await store.cache.claim(
        store.key,
        ClaimRequest(
            token=os.urandom(16),
            fingerprint=PRINT,
            lease_ms=POLICY.lease_ms,
            retention_ms=RETENTION,
            submission=submission,
        ),
    )
    assert claim.won
    store.leave(RETENTION - 1)


async def ask(store: Store, *, submission: bool, fingerprint: bytes = PRINT) -> Attempt | Verdict:
    admissions = Admissions(store.cache, max_in_flight=1)
    return await admissions.admit(AdmissionRequest(store.key, fingerprint, POLICY, submission=submission))


async def test_a_submission_of_unknown_end_is_taken_over_by_the_retry_whatever_the_policy_says(store: Store) -> None:
    await lapsed(store, submission=True)
    attempt = await ask(store, submission=True)
    assert isinstance(attempt, Attempt)
    assert attempt.number == 2
    attempt.settle(State.SUCCEEDED)
    await attempt.ended()
    held = await store.cache.get(store.key)
    assert held is not None
    assert held.record.submission


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True), (False, False)])
async def test_otherwise_an_unknown_end_is_refused_as_the_policy_says(store: Store, first: bool, second: bool) -> None:
    await lapsed(store, submission=first)
    verdict = await ask(store, submission=second)
    assert isinstance(verdict, Verdict)
    assert verdict.decision is Decision.REFUSE


async def test_a_submission_with_another_payload_takes_nothing_over(store: Store) -> None:
    await lapsed(store, submission=True)
    verdict = await ask(store, submission=True, fingerprint=b"q" * 16)
    assert isinstance(verdict, Verdict)
    assert verdict.decision is Decision.MISMATCH


async def test_the_slot_of_a_submission_that_is_refused_is_free_again(store: Store) -> None:
    await lapsed(store, submission=True)
    admissions = Admissions(store.cache, max_in_flight=1)
    await admissions.admit(AdmissionRequest(store.key, b"q" * 16, POLICY, submission=True))
    assert admissions.in_flight.slots == 0
