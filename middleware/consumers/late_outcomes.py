"""`LateOutcomes`: records what became of a command whose message was acknowledged before it was executed.

It is an attempt like any other: claimed, settled, fenced by its token. Where a success is recorded already, or the record is of
another payload, nothing is left to do; where somebody else has it in flight, that one's end is waited for.

Of what came through the gateway it ends with its submission's record, and is not written where that is over: else the key would
be accepted anew, under another number, and skipped as processed (oncegate.app.commands.submission_life).
"""

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from oncegate.cache.errors import CacheError, RecordUnreadable
from oncegate.cache.record import State
from oncegate.middleware.admission.admission import Admissions, Verdict
from oncegate.middleware.admission.attempt import Attempt
from oncegate.middleware.admission.request import Address, AdmissionRequest
from oncegate.middleware.consumers.begun import Execution, Recording, decided, kept_failure, not_kept
from oncegate.middleware.consumers.delivery import Delivery, DeliveryDecision
from oncegate.middleware.consumers.transactional import DeliveryContext, LateOutcome
from oncegate.middleware.rules.errors import Overloaded
from oncegate.middleware.rules.keys.key import execution_key, key_of_id
from oncegate.middleware.rules.policy import Policy

if TYPE_CHECKING:
    from oncegate.middleware.consumers.subscription import Subscription

log = logging.getLogger("oncegate.subscription")

AHEAD_MS = 1000
"""An execution's record ends so much sooner than its submission's: what is accepted anew must not meet it."""
_REASON = "What was put off has failed for good."


class LateOutcomes:
    """The late outcomes of the commands of a subscription."""

    def __init__(self, hook: "Subscription", admissions: Admissions, policy: Policy) -> None:
        self._hook = hook
        self._admissions = admissions
        self._policy = policy

    async def record(self, late: LateOutcome) -> bool:
        """See `oncegate.middleware.consumers.transactional.RecordsLate`."""
        hook, policy = self._hook, self._policy
        key = key_of_id(hook.namespace, late.record)
        try:
            if late.submitted:
                submission = await hook.cache.peek(key)
                left = 0 if submission is None else submission.remaining_ms - AHEAD_MS
                if left <= 0:
                    log.info("record %s: its submission's time is over, and so is its own", late.record)
                    return True
                policy = replace(policy, ttl_ms={late.state: min(policy.ttl_ms[late.state], left)})
            request = AdmissionRequest(Address(execution_key(key, hook.consumer), late.fingerprint), policy)
            found = await self._admissions.admit(request)
        except RecordUnreadable as error:
            log.error("record %s: what became of it later is not recorded: %s", late.record, error)
            return True
        except (CacheError, Overloaded) as error:
            log.warning("record %s: what became of it later can't be recorded yet: %s", late.record, error)
            return False
        if isinstance(found, Verdict):
            return found.record.state is State.SUCCEEDED or found.record.fingerprint != late.fingerprint
        return await self._settle(late, found)

    async def _settle(self, late: LateOutcome, attempt: Attempt) -> bool:
        hook = self._hook
        self._admissions.in_flight.hold(attempt)
        begun = decided(DeliveryDecision.RUN, late.record, attempt=attempt.number)
        context = DeliveryContext(Delivery(None), late.record)
        execution = Execution(begun, context, attempt, hook.settings, hook.dead_lettered)
        if late.state is State.SUCCEEDED:
            return await execution.succeed(not_kept() if late.body is None else late.body) is Recording.RECORDED
        await execution.exhaust(kept_failure(late.body), _REASON, attempt.number)
        recorded = await execution.recorded() is Recording.RECORDED
        if recorded:
            hook.dead_lettered(DeliveryDecision.EXHAUSTED.value)
        return recorded
