"""Who may take over a submission that nobody knows the end of: another submission, whatever the policy says, and nobody else."""

import os

import pytest

from oncegate.cache.record import ClaimRequest, State
from oncegate.middleware.admission.admission import Admissions, Verdict
from oncegate.middleware.admission.attempt import Attempt
from oncegate.middleware.admission.gate import GateDecision
from oncegate.middleware.admission.request import Address, AdmissionRequest
from oncegate.middleware.rules.errors import Overloaded
from oncegate.middleware.rules.policy import compile_policy
from oncegate.middleware.rules.settings import IdempotencySettings
from testing.records import read
from tests.cache.stores import Store

PRINT = b"p" * 16
POLICY = compile_policy(IdempotencySettings(on_unknown="refuse"))
RETENTION = POLICY.retention_ms


async def lapsed(store: Store, *, submission: bool) -> None:
    request = ClaimRequest(os.urandom(16), PRINT, POLICY.lease_ms, RETENTION, submission=submission)
    assert (await store.cache.claim(store.key, request)).won
    store.leave(RETENTION - 1)


async def admitted(store: Store, *, submission: bool, fingerprint: bytes = PRINT) -> Attempt | Verdict:
    admissions = Admissions(store.cache, max_in_flight=1)
    return await admissions.admit(AdmissionRequest(Address(store.key, fingerprint), POLICY, submission=submission))


async def test_a_submission_of_unknown_end_is_taken_over_by_the_retry_whatever_the_policy_says(store: Store) -> None:
    await lapsed(store, submission=True)
    attempt = await admitted(store, submission=True)
    assert isinstance(attempt, Attempt)
    assert attempt.number == 2
    attempt.settle(State.SUCCEEDED)
    await attempt.ended()
    assert (await read(store.cache, store.key)).record.submission


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True), (False, False)])
async def test_otherwise_an_unknown_end_is_refused_as_the_policy_says(store: Store, first: bool, second: bool) -> None:
    await lapsed(store, submission=first)
    verdict = await admitted(store, submission=second)
    assert isinstance(verdict, Verdict)
    assert verdict.decision is GateDecision.REFUSE


async def test_a_submission_with_another_payload_takes_nothing_over(store: Store) -> None:
    await lapsed(store, submission=True)
    verdict = await admitted(store, submission=True, fingerprint=b"q" * 16)
    assert isinstance(verdict, Verdict)
    assert verdict.decision is GateDecision.MISMATCH


async def test_without_a_slot_a_retry_that_would_take_over_is_to_come_later_and_another_is_refused(
    store: Store,
) -> None:
    await lapsed(store, submission=True)
    admissions = Admissions(store.cache, max_in_flight=1)
    admissions.in_flight.slots.taken = 1
    with pytest.raises(Overloaded):
        await admissions.admit(AdmissionRequest(Address(store.key, PRINT), POLICY, submission=True))
    verdict = await admissions.admit(AdmissionRequest(Address(store.key, PRINT), POLICY))
    assert isinstance(verdict, Verdict)
    assert verdict.decision is GateDecision.REFUSE


async def test_the_slot_of_a_submission_that_is_refused_is_free_again(store: Store) -> None:
    await lapsed(store, submission=True)
    admissions = Admissions(store.cache, max_in_flight=1)
    await admissions.admit(AdmissionRequest(Address(store.key, b"q" * 16), POLICY, submission=True))
    assert admissions.in_flight.slots.taken == 0
