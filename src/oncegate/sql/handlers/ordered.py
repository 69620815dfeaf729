"""A handler whose messages are applied in their order: what comes early is parked, and follows when its turn has come.

Strategy. A delivery that is early is stored in a transaction of its own, and acknowledged. Who applies a number sees, by the same
statement, whether messages are parked behind it, and runs them, each in a transaction of its own that deletes its row. Where he
dies before, the next delivery about the aggregate does it, or a sweep. What follows never decides about the delivery that it
follows: that one is committed. What may kill its process is written down before it runs: the attempt at a parked message, and the
last one at a delivery, behind which no other would come.

The hook that has let a parked message be acknowledged gets its outcome: kept with the row by the transaction that applied it, or
that has found that it failed for good, and recorded after that, by whoever comes first.
"""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable
from typing import Any, Final

from sqlalchemy.orm import Session

from oncegate.middleware.consumers.sql_interface import (
    Delivery,
    DeliveryContext,
    Executed,
    NotProcessed,
    NotRetryable,
    OutcomeUnknown,
    Parked,
    RecordsLate,
    current,
    executing,
    kind_and_text,
    set_takes_late,
)
from oncegate.sql.database.errors import KeyReused, SequenceEarly, SequenceForked, SequenceInvalid, reason_of
from oncegate.sql.handlers.handler import (
    Await,
    Handler,
    Maker,
    Sessions,
    Sweep,
    session_parameter,
    with_session,
)
from oncegate.sql.handlers.parked_arguments import ParkedArguments
from oncegate.sql.handlers.transaction import Marks, call_within, commit, execute, message_of
from oncegate.sql.marking.sequence_writer import SequenceWriter
from oncegate.sql.order.guard import Decision
from oncegate.sql.order.numbers import Numbered, digest
from oncegate.sql.order.parked import UNENDED, Parking, late_outcome, outcome_of_error

log = logging.getLogger("oncegate.inbox")

_TRIES: Final = 8
"""How often a delivery is parked or applied, where others move on in between."""
_OF_OTHERS: Final = (NotProcessed, OutcomeUnknown, SequenceForked, SequenceInvalid, KeyReused)
"""After these the number itself hasn't failed."""
_FOLLOWED_SECONDS: Final = 450.0
"""The time for what a sweep finds; after a delivery it is half of its time limit."""
_NOTED_SECONDS: Final = 5.0
"""The time for what is noted behind a handler's own."""
_OVERDUE: Final = "TimeoutError: the last attempt ran into its time-out, or its process was stopped"


def in_order(inbox: Marks, sequences: SequenceWriter, maker: Maker, handler: Handler) -> tuple[Handler, Sweep]:
    """A handler that applies messages in their order, of one of the payload and a session; and what sweeps for it."""
    sessions = Sessions(maker)
    ordered = OrderedHandler(inbox, sequences, sessions, handler)
    made = sessions.handler(ordered.deliver)
    set_takes_late(made, ordered.take_late_outcomes)
    return made, sessions.sweep(ordered.sweep)


class OrderedHandler:
    """The handler of messages that are applied in order under ``inbox``, whose numbers ``sequences`` keeps."""

    def __init__(self, inbox: Marks, sequences: SequenceWriter, sessions: Sessions, handler: Handler) -> None:
        self._inbox = inbox
        self._sequences = sequences
        self._sessions = sessions
        self._handler = handler
        self._session_name = session_parameter(handler)
        self._arguments = ParkedArguments(handler, self._session_name)
        self._late_outcomes: RecordsLate | None = None

    def take_late_outcomes(self, records: RecordsLate) -> None:
        """Have ``records`` record what becomes of parked messages."""
        self._late_outcomes = records

    def deliver(self, *args: Any, **kwargs: Any) -> Any:
        """The handler's result for the delivery that is executed here, or the kept one. Raises `Parked`, and `SequenceEarly`."""
        began = time.monotonic()
        for context in current():
            self._late_outcomes = context.late_outcomes or self._late_outcomes
        for _ in range(_TRIES):
            try:
                executed = self._execute(args, kwargs)
            except SequenceEarly as early:
                (context,) = current()
                if self._park(context, args, kwargs) is not Parking.PARKED:
                    continue
                ran = self._follow_own(context, began)
                if context.record in ran:  # its turn came while it was parked
                    return _returned(ran[context.record])
                raise Parked(f"record {context.record or '-'}: parked until the number before it is applied") from early
            except (Exception, asyncio.CancelledError) as error:
                self._note_failure(error, args, kwargs)
                raise
            (context,) = current()
            if executed.waiting:
                self._follow_own(context, began)
            return executed.result
        raise SequenceEarly("other deliveries about the aggregate were always quicker")

    def _execute(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Executed:
        for context in current():
            if context.last:  # its process may die, and the hook gives it up without us
                context.rolled_back = True  # whatever ends it here
                self._note(context, UNENDED, args, kwargs, ended=False)
                context.rolled_back = False
        executed: Executed = self._sessions.within(
            lambda session, of_handler: execute(session, self._inbox, lambda: self._call(of_handler, args, kwargs))
        )
        return executed

    def _follow_own(self, context: DeliveryContext, began: float) -> dict[str, Any]:
        return self.follow(digest(context.delivery.aggregate), began + context.timeout / 2, self._sessions.awaits())

    def sweep(self, wait: Await) -> None:
        """Run the parked messages whose turn has come, and have outcomes recorded, as after a death. Raises SQLAlchemy's."""
        due = self._sessions.within(lambda session, _: self._sequences.due(session))
        for aggregate in due:
            self.follow(aggregate, time.monotonic() + _FOLLOWED_SECONDS, wait)
        self._record(None, wait)

    def follow(self, aggregate: bytes, until: float, wait: Await) -> dict[str, Any]:
        """Run the parked messages of an aggregate whose turn it is. What fails is logged, and is tried again later.

        Returns the result of the delivery that is executed here, by its record, if it was among them; or its final error.
        """
        ran: dict[str, Any] = {}
        try:
            while (left := until - time.monotonic()) > 0 and self._run_next(aggregate, left, ran):
                pass
            self._record(aggregate, wait)
        except Exception as error:  # noqa: BLE001  # whatever it is, it is no outcome of the delivery that was committed before it
            log.warning("parked messages wait on: %s: %s", type(error).__name__, reason_of(error))
        return ran

    def _record(self, aggregate: bytes | None, wait: Await) -> None:
        """Have the outcomes recorded that are kept for an aggregate, or for all, up to one for which that can't be done now."""
        records, parked = self._late_outcomes, self._sequences.parked
        if records is None:
            return
        owed = self._sessions.within(lambda session, _: parked.owed(session.connection(), aggregate))
        done = list(itertools.takewhile(lambda row: wait(records.record(late_outcome(row))), owed))

        def note(session: Session) -> None:
            for row in done:
                parked.recorded(session.connection(), row)
            for row in owed[len(done) :][:1]:
                parked.record_later(session.connection(), row)

        if owed:
            self._in_transaction(note)

    def _in_transaction(self, step: Callable[[Session], Any], seconds: float | None = None) -> Any:
        """The result of ``step``, committed."""

        def run(session: Session, _: Any) -> Any:
            result = step(session)
            commit(session)
            return result

        return self._sessions.within(run, seconds)

    def _park(self, context: DeliveryContext, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Parking:
        arguments = self._arguments.dump(args, kwargs)
        if arguments is None:
            raise SequenceEarly(
                f"record {context.record or '-'}: is early, and can't be parked: its payload is no JSON"
            )
        message = message_of(context)
        found: Parking = self._in_transaction(
            lambda session: self._sequences.park(session, message, arguments, context.submitted)
        )
        if found is Parking.FULL:
            raise SequenceEarly(f"record {context.record or '-'}: is early, and max_parked others are parked")
        if found is Parking.PARKED:
            log.info(
                "record %s: parked until the number before %d is applied", context.named, context.delivery.sequence
            )
        return found

    def _note_failure(self, error: BaseException, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note a delivery that has failed for good. A cancellation too: of the last attempt, no other follows."""
        context = next(iter(current()), None)
        final = isinstance(error, NotRetryable) or (context is not None and context.last)
        if context is None or not final or isinstance(error, _OF_OTHERS):
            return
        reason = _OVERDUE if isinstance(error, asyncio.CancelledError) else _reason(error)
        self._note(context, reason, args, kwargs, ended=True)

    def _note(
        self, context: DeliveryContext, reason: str, args: tuple[Any, ...], kwargs: dict[str, Any], *, ended: bool
    ) -> None:
        """Have operators find a delivery that others are to wait for."""
        if not self._sequences.parks:
            return
        message = message_of(context)
        arguments = self._arguments.dump(args, kwargs) or ""

        def note(session: Session) -> None:
            self._sequences.note(session, message, arguments, context.submitted, context.attempt, reason, ended=ended)

        try:
            self._in_transaction(note, _NOTED_SECONDS)
        except Exception as failed:  # noqa: BLE001  # whatever stands in its way, the delivery's outcome is another matter
            log.warning("record %s: can't be noted for operators: %s", context.named, type(failed).__name__)

    def _call(self, of_handler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._sessions.call(with_session(self._handler, self._session_name, of_handler, args, kwargs))

    def _run_next(self, aggregate: bytes, seconds: float, ran: dict[str, Any]) -> bool:
        """Whether there may be another one."""
        row, another = self._in_transaction(lambda session: self._take(session, aggregate), seconds)
        if row is None:
            return bool(another)
        try:
            return bool(
                self._sessions.within(lambda session, of_handler: self._run(session, of_handler, row, ran), seconds)
            )
        except Exception as error:  # noqa: BLE001  # whatever a handler raises
            self._failed(row, error, ran)
            return False

    def _take(self, session: Session, aggregate: bytes) -> tuple[Any, bool]:
        """The message whose turn it is, its attempt counted: its process may die. ``None``, and whether there may be another."""
        parked, connection = self._sequences.parked, session.connection()
        row = parked.next(connection, aggregate)
        if row is None:
            return None, False
        if row.sequence <= row.last:  # it was delivered again, or skipped
            parked.remove(connection, row, counted=False)
            return None, True
        if row.attempts < self._inbox.max_attempts:
            parked.begin(connection, row)
            return row, True
        outcome = outcome_of_error(UNENDED)
        parked.put_off(connection, row, failed=False, dead=True, reason=UNENDED, outcome=outcome)
        log.error("record %s: number %d, parked, %s: its aggregate waits", row.message or "-", row.sequence, UNENDED)
        return None, False

    def _run(self, session: Session, of_handler: Any, row: Any, ran: dict[str, Any]) -> bool:
        parked = self._sequences.parked
        if not self._sequences.lock(session, row):  # something has held this process up, and another one has it
            return False
        own = _own(row)
        stays = bool(row.message and row.fingerprint) and own is None
        numbered = Numbered(
            row.aggregate, row.sequence, row.message or "", row.fingerprint, parked="" if stays else row.consumer
        )
        entry = self._sequences.decide(session, numbered)
        if entry.decision is not Decision.FIRST:  # another one was quicker
            return False
        arguments = self._arguments.load(row.arguments)
        with executing(self._context(row)):
            (result,) = call_within(session, lambda: [self._call(of_handler, (), arguments)], [entry])
        if stays:
            parked.owe(session.connection(), row, entry.as_json(result))
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
    def _context(row: Any) -> DeliveryContext:
        """The parked message as a delivery, for what the handler calls."""
        delivery = Delivery(None, aggregate=row.aggregate_id, sequence=row.sequence)
        return DeliveryContext(delivery, row.message or "", attempt=row.attempts + 1)

    def _failed(self, row: Any, error: Exception, ran: dict[str, Any]) -> None:
        """Note that a parked message has failed; its aggregate alone waits for it."""
        failed = not isinstance(error, NotProcessed | OutcomeUnknown)
        dead = failed and (isinstance(error, NotRetryable) or row.attempts + 1 >= self._inbox.max_attempts)
        kind, _ = kind_and_text(error)
        log.log(
            logging.ERROR if dead else logging.WARNING,
            "record %s: number %d, parked, attempt %d failed: %s%s",
            *(row.message or "-", row.sequence, row.attempts + 1, kind, ": its aggregate waits" if dead else ""),
        )
        own = _own(row) if dead else None  # the hook records what it raises
        reason, outcome = _reason(error), outcome_of_error(error) if dead and own is None else None

        def put_off(session: Session) -> None:
            parked = self._sequences.parked
            parked.put_off(session.connection(), row, failed=failed, dead=dead, reason=reason, outcome=outcome)

        self._in_transaction(put_off)
        if own is not None:
            own.given_up = True
            ran[own.record] = error


def _returned(outcome: Any) -> Any:
    """The result of a delivery. Raises the error that it has failed with for good."""
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def _own(row: Any) -> DeliveryContext | None:
    """The delivery that is executed here, if the row is its own."""
    return next((context for context in current() if context.record and context.record == row.message), None)


def _reason(error: BaseException) -> str:
    """The error as it is stored, for operators."""
    kind, text = kind_and_text(error)
    return (f"{kind}: {text}" if text else kind).replace("\x00", "\\x00")  # PostgreSQL's text has none
