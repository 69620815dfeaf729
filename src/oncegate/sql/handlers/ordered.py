"""A handler whose messages are applied in their order: what comes early is parked, and follows when its turn has come.

Strategy. A delivery that is early is stored in a transaction of its own, and acknowledged. Who applies a number sees, by the same
statement, whether messages are parked behind it, and runs them, each in a transaction of its own that deletes its row. Where he
dies before, the next delivery about the aggregate does it, or a sweep. What follows never decides about the delivery that it
follows: that one is committed.

The hook that has let a parked message be acknowledged gets its outcome: kept with the row by the transaction that applied it, or
that has found that it failed for good, and recorded after that, by whoever comes first.

Written once, without asyncio: for coroutine functions it runs in SQLAlchemy's ``greenlet_spawn``.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from sqlalchemy.orm import Session

from oncegate.middleware.consumers.begun import Begun
from oncegate.middleware.consumers.delivery import DeliveryDecision
from oncegate.middleware.consumers.executing import current, executing
from oncegate.middleware.consumers.transactional import RecordsLate
from oncegate.middleware.outcome.errors import NotProcessed, NotRetryable, OutcomeUnknown, Parked
from oncegate.middleware.outcome.raised import kind_and_text
from oncegate.sql.database.errors import KeyReused, SequenceEarly, SequenceForked, SequenceInvalid
from oncegate.sql.handlers.parked_arguments import ParkedArguments
from oncegate.sql.handlers.transaction import Marks, call_within, commit, execute, is_result, message_of
from oncegate.sql.marking.sequence_writer import SequenceWriter
from oncegate.sql.order.guard import Decision
from oncegate.sql.order.numbers import Numbered, digest
from oncegate.sql.order.outcome import late_outcome, outcome_of_error, outcome_of_result
from oncegate.sql.order.parked import Parking

log = logging.getLogger("oncegate.inbox")

_TRIES: Final = 8
"""How often a delivery is parked or applied, where others move on in between."""
_OF_OTHERS: Final = (NotProcessed, OutcomeUnknown, SequenceForked, SequenceInvalid, KeyReused)
"""After these the number itself hasn't failed."""
_FOLLOWED_SECONDS: Final = 450.0
"""For what a sweep finds; after a delivery, half of its time limit."""
_NOTED_SECONDS: Final = 5.0
"""For what is noted behind a handler's time."""
_OVERDUE: Final = "TimeoutError: the last attempt ran into its time-out, or its process was stopped"

Call = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
InSession = Callable[[Callable[[Session, Any], Any], float | None], Any]
Await = Callable[[Coroutine[Any, Any, bool]], bool]
"""Waits for what is to be done in the hook's event loop; false, too, where nobody can wait for it."""


class Ordered(Marks, Protocol):
    """What is needed of an `Inbox` besides."""

    max_attempts: int


class OrderedHandler:
    """Applies messages under ``inbox``, whose numbers ``sequences`` keeps.

    ``call`` calls the handler with a session and its other arguments. ``in_session`` calls a step with a synchronous session and
    the one that the handler gets, in a transaction that the step commits, for so many seconds at most.
    """

    def __init__(
        self, inbox: Ordered, sequences: SequenceWriter, arguments: ParkedArguments, call: Call, in_session: InSession
    ) -> None:
        self._inbox = inbox
        self._sequences = sequences
        self._arguments = arguments
        self._call = call
        self._in_session = in_session
        self._late_outcomes: RecordsLate | None = None

    def take_late_outcomes(self, records: RecordsLate) -> None:
        """Have ``records`` record what becomes of parked messages."""
        self._late_outcomes = records

    def deliver(self, args: tuple[Any, ...], kwargs: dict[str, Any], wait: Await) -> Any:
        """The handler's result for the delivery that is executed here, or the kept one. Raises `Parked`, and `SequenceEarly`."""
        began = time.monotonic()
        for begun in current():
            self._late_outcomes = begun.late_outcomes or self._late_outcomes
        for _ in range(_TRIES):
            try:
                executed = self._in_session(
                    lambda session, of_handler: execute(
                        session, self._inbox, lambda: self._call(of_handler, args, kwargs), is_result
                    ),
                    None,
                )
            except SequenceEarly as early:
                (begun,) = current()
                if self._park(begun, args, kwargs) is not Parking.PARKED:
                    continue
                ran = self.follow(digest(begun.aggregate), began + begun.timeout / 2, wait)
                if begun.record in ran:  # its turn came while it was parked
                    return ran[begun.record]
                raise Parked(f"record {begun.record or '-'}: parked until the number before it is applied") from early
            except (Exception, asyncio.CancelledError) as error:
                self._note(error, args, kwargs)
                raise
            (begun,) = current()
            if executed.waiting:
                self.follow(digest(begun.aggregate), began + begun.timeout / 2, wait)
            return executed.result
        raise SequenceEarly("other deliveries about the aggregate were always quicker")

    def sweep(self, wait: Await) -> None:
        """Run the parked messages whose turn has come, and have outcomes recorded, as after a death. Raises SQLAlchemy's."""
        due = self._in_session(lambda session, _: self._sequences.due(session), None)
        for aggregate in due:
            self.follow(aggregate, time.monotonic() + _FOLLOWED_SECONDS, wait)
        self._record(None, wait)

    def follow(self, aggregate: bytes, until: float, wait: Await) -> dict[str, Any]:
        """Run the parked messages of an aggregate whose turn it is. What fails is logged, and is tried again later.

        Returns the result of the delivery that is executed here, by its record, if it was among them.
        """
        ran: dict[str, Any] = {}
        try:
            while (left := until - time.monotonic()) > 0 and self._run_next(aggregate, left, ran):
                pass
            self._record(aggregate, wait)
        except Exception as error:  # noqa: BLE001  # whatever it is, it is no outcome of the delivery that was committed before it
            log.warning("parked messages wait on: %s: %s", type(error).__name__, str(error).partition("\n")[0])
        return ran

    def _record(self, aggregate: bytes | None, wait: Await) -> None:
        """Have the outcomes recorded that are kept for an aggregate, or for all, up to one for which that can't be done now."""
        records, parked = self._late_outcomes, self._sequences.parked
        if records is None:
            return
        owed = self._in_session(lambda session, _: parked.owed(session.connection(), aggregate), None)
        done: list[Any] = []
        failed = next((row for row in owed if not self._is_recorded(row, records, wait, done)), None)

        def note(session: Session, _: Any) -> None:
            for row in done:
                parked.recorded(session.connection(), row)
            if failed is not None:
                parked.record_later(session.connection(), failed)
            commit(session)

        if owed:
            self._in_session(note, None)

    @staticmethod
    def _is_recorded(row: Any, records: RecordsLate, wait: Await, done: list[Any]) -> bool:
        if recorded := wait(records.record(late_outcome(row))):
            done.append(row)
        return recorded

    def _park(self, begun: Begun, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Parking:
        arguments = self._arguments.dump(args, kwargs)
        if arguments is None:
            raise SequenceEarly(f"record {begun.record or '-'}: is early, and can't be parked: its payload is no JSON")
        message = message_of(begun)

        def park(session: Session, _: Any) -> Parking:
            found = self._sequences.park(session, message, arguments, begun.submitted)
            commit(session)
            return found

        found: Parking = self._in_session(park, None)
        if found is Parking.FULL:
            raise SequenceEarly(f"record {begun.record or '-'}: is early, and max_parked others are parked")
        if found is Parking.PARKED:
            log.info("record %s: parked until the number before %d is applied", begun.named, begun.sequence)
        return found

    def _note(self, error: BaseException, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Have operators find a delivery that has failed for good, and that others are to wait for.

        A cancellation too: of the last attempt, no other follows.
        """
        begun = next(iter(current()), None)
        final = isinstance(error, NotRetryable) or (begun is not None and begun.last)
        if begun is None or not final or isinstance(error, _OF_OTHERS) or not self._sequences.parks:
            return
        message = message_of(begun)
        arguments = self._arguments.dump(args, kwargs) or ""
        reason = _OVERDUE if isinstance(error, asyncio.CancelledError) else _reason(error)

        def note(session: Session, _: Any) -> None:
            self._sequences.note(session, message, arguments, begun.submitted, begun.attempt, reason)
            commit(session)

        try:
            self._in_session(note, _NOTED_SECONDS)
        except Exception as failed:  # noqa: BLE001  # whatever stands in its way: the delivery has failed all the same
            log.warning("record %s: its failure can't be noted: %s", begun.named, type(failed).__name__)

    def _run_next(self, aggregate: bytes, seconds: float, ran: dict[str, Any]) -> bool:
        """Whether there may be another one."""
        taken: list[Any] = []
        try:
            another: bool = self._in_session(
                lambda session, of_handler: self._run(session, of_handler, aggregate, taken, ran), seconds
            )
        except Exception as error:
            if not taken:
                raise
            self._failed(taken[0], error)
            return False
        return another

    def _run(self, session: Session, of_handler: Any, aggregate: bytes, taken: list[Any], ran: dict[str, Any]) -> bool:
        parked = self._sequences.parked
        row = parked.next(session.connection(), aggregate)
        if row is None:
            return False
        if row.sequence <= row.last:  # it was delivered again, or skipped
            parked.remove(session.connection(), row, counted=False)
            commit(session)
            return True
        taken.append(row)
        own = next((begun for begun in current() if begun.record and begun.record == row.message), None)
        stays = bool(row.message and row.fingerprint) and own is None
        numbered = Numbered(
            aggregate, row.sequence, row.message or "", row.fingerprint, parked="" if stays else row.consumer
        )
        entry = self._sequences.decide(session, numbered)
        if entry.decision is not Decision.FIRST:  # another one was quicker
            return False
        arguments = self._arguments.load(row.arguments)
        with executing(self._begun(row)):
            (result,) = call_within(session, lambda: [self._call(of_handler, (), arguments)], [entry], [0], is_result)
        if stays:
            parked.owe(session.connection(), row, outcome_of_result(entry.as_json(result)))
        else:
            parked.remove(session.connection(), row, counted=True)
        if own is not None:  # it is not acknowledged yet: the hook records what it returns
            own.rolled_back = False
        commit(session)
        if own is not None:
            ran[own.record] = result
        log.info("record %s: number %d was parked, and is applied", row.message or "-", row.sequence)
        return True

    @staticmethod
    def _begun(row: Any) -> Begun:
        """What is executed, for what the handler calls."""
        begun = Begun(DeliveryDecision.RUN, row.message or "", attempt=row.attempts + 1)
        begun.aggregate, begun.sequence = row.aggregate_id, row.sequence
        return begun

    def _failed(self, row: Any, error: Exception) -> None:
        """Note that a parked message has failed; its aggregate alone waits for it."""
        failed = not isinstance(error, NotProcessed | OutcomeUnknown)
        dead = failed and (isinstance(error, NotRetryable) or row.attempts + 1 >= self._inbox.max_attempts)
        kind, _ = kind_and_text(error)
        log.log(
            logging.ERROR if dead else logging.WARNING,
            "record %s: number %d, parked, attempt %d failed: %s%s",
            *(row.message or "-", row.sequence, row.attempts + 1, kind, ": its aggregate waits" if dead else ""),
        )
        reason, outcome = _reason(error), outcome_of_error(error) if dead else None

        def put_off(session: Session, _: Any) -> None:
            self._sequences.parked.put_off(session.connection(), row, failed=failed, reason=reason, outcome=outcome)
            commit(session)

        self._in_session(put_off, None)


def _reason(error: BaseException) -> str:
    """The error as it is stored, for operators."""
    kind, text = kind_and_text(error)
    return (f"{kind}: {text}" if text else kind).replace("\x00", "\\x00")  # PostgreSQL's text has none
