"""The consumers' gate: decides about a delivery by its records. Pure: it awaits nothing, knows no broker and no store."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson

from oncegate.cache.record import Record, State, StoredResponse
from oncegate.middleware.consumers.begun import failure
from oncegate.middleware.consumers.delivery import DeliveryDecision
from oncegate.middleware.outcome.results import read_error

_DECIDED = {State.SUCCEEDED: DeliveryDecision.DUPLICATE, State.IN_FLIGHT: DeliveryDecision.IN_FLIGHT}
"""Decisions by the state of an execution; after any other, the command may be executed again."""


def by_execution(record: Record, fingerprint: bytes, *, warns: bool = False) -> DeliveryDecision | None:
    """The decision by an execution record, under the consumer's own name or a former one; ``None``: it may be taken over.

    ``warns``: another payload is taken for the record's own.
    """
    if record.fingerprint != fingerprint and not warns:
        return DeliveryDecision.MISMATCH
    return _DECIDED.get(record.state)


def by_submission(record: Record | None, fingerprint: bytes) -> DeliveryDecision | None:
    """The decision by the command's own record: only an execution by the gateway itself, done or in flight, decides.

    What it only accepted (``submission``) was not processed. A record of another ``fingerprint`` than the delivery brings is of
    another command, of a processor in the service for instance, which publishes a message under its own command's key.
    """
    if record is None or record.submission or record.fingerprint != fingerprint:
        return None
    return _DECIDED.get(record.state)


@dataclass(frozen=True, slots=True)
class Allowance:
    """How many attempts a command may have: ``limit`` (0: any number) after the first ``before``, which don't count any more.

    ``elsewhere`` were made under the consumer's former names; ``dead``: one of those was the last.
    """

    limit: int
    before: int
    elsewhere: int = 0
    dead: bool = False

    def total(self, number: int) -> int:
        """How many attempts there were with this one, which has ``number`` in the consumer's own record."""
        return number + self.elsewhere

    def allows(self, number: int) -> bool:
        """Whether the attempt of this number may be made."""
        return not self.dead and (not self.limit or self.total(number) - self.before <= self.limit)

    def is_last(self, number: int) -> bool:
        """Whether no attempt may follow this one."""
        return bool(self.limit) and self.total(number) - self.before >= self.limit

    def ended(self, record: Record) -> bool:
        """Whether ``record`` says that its attempt was the last, and no operator has retried the command since."""
        return is_dead(record) and self.total(record.attempt) > self.before


def allowance(limit: int, before: int, former: Iterable[Record]) -> Allowance:
    """The attempts that are allowed after those counted by the execution records under ``former`` names."""
    records = list(former)
    elsewhere = sum(record.attempt for record in records)
    dead = elsewhere > before and any(is_dead(record) for record in records)
    return Allowance(limit, before, elsewhere, dead)


def is_dead(record: Record) -> bool:
    """Whether a failed record says that no attempt will follow."""
    return _error(record).get("dead") is True


def last_error(record: Record | None) -> StoredResponse:
    """The error of a command that gets no further attempt, made of the last one that is known."""
    error = _error(record)
    if record is None or record.response is None or not error:
        return failure("Every attempt ended without an outcome, as when its process dies.", dead=True)
    return record.response._replace(body=orjson.dumps(error | {"dead": True}))


def _error(record: Record | None) -> dict[str, Any]:
    return read_error(record.response) if record is not None and record.state is State.FAILED else {}


NO_WARNING = (DeliveryDecision.MISMATCH, DeliveryDecision.IN_FLIGHT)
"""Decisions about another payload that warn of nothing: it is refused, or comes again and is decided about then."""
WITH_RESPONSE = (DeliveryDecision.DUPLICATE, DeliveryDecision.EXHAUSTED)
REASONS = {
    DeliveryDecision.DUPLICATE: "The command was processed before.",
    DeliveryDecision.IN_FLIGHT: "The command is being executed elsewhere.",
    DeliveryDecision.MISMATCH: "The key was used for another payload.",
    DeliveryDecision.EXHAUSTED: "No attempt is left.",
}


def differs(record: Record | None, fingerprint: bytes) -> bool:
    """Whether there is a ``record``, and it is of another payload."""
    return record is not None and record.fingerprint != fingerprint
