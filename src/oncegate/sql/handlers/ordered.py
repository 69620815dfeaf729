"""A handler whose messages are applied in their order: what comes early is parked, and follows when its turn has come.

Strategy. A delivery that is early is stored in a transaction of its own, and acknowledged. Who applies a number sees, by the same
statement, whether messages are parked behind it, and runs them, each in a transaction of its own that deletes its row. Where he
dies before, the next delivery about the aggregate does it, or a sweep. What follows never decides about the delivery that it
follows: that one is committed.

Written once, without asyncio: for coroutine functions it runs in SQLAlchemy's ``greenlet_spawn``.
"""

import logging
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from sqlalchemy.orm import Session

from oncegate.middleware.consumers.begun import Begun
from oncegate.middleware.consumers.delivery import DeliveryDecision
from oncegate.middleware.consumers.executing import current, executing
from oncegate.middleware.outcome.errors import NotProcessed, NotRetryable, OutcomeUnknown, Parked
from oncegate.middleware.outcome.raised import kind_and_text
from oncegate.sql.database.errors import KeyReused, SequenceEarly, SequenceForked, SequenceInvalid
from oncegate.sql.handlers.parked_arguments import ParkedArguments
from oncegate.sql.handlers.transaction import Marks, call_within, commit, execute, is_result, message_of
from oncegate.sql.marking.sequence_writer import SequenceWriter
from oncegate.sql.order.guard import Decision
from oncegate.sql.order.numbers import Numbered, digest
from oncegate.sql.order.parked import Parking

log = logging.getLogger("oncegate.inbox")

_TRIES: Final = 8
"""How often a delivery is parked or applied, where others move on in between."""
_OF_OTHERS: Final = (NotProcessed, OutcomeUnknown, SequenceForked, SequenceInvalid, KeyReused)
"""After these the number itself hasn't failed."""
_FOLLOWED_SECONDS: Final = 450.0
"""For what a sweep finds; after a delivery, half of its time limit."""

Call = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
InSession = Callable[[Callable[[Session, Any], Any], float | None], Any]


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

    def deliver(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The handler's result for the delivery that is executed here, or the kept one. Raises `Parked`, and `SequenceEarly`."""
        began = time.monotonic()
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
                self.follow(digest(begun.aggregate), began + begun.timeout / 2)
                raise Parked(f"record {begun.record or '-'}: parked until the number before it is applied") from early
            except Exception as error:
                self._note(error, args, kwargs)
                raise
            (begun,) = current()
            if executed.waiting:
                self.follow(digest(begun.aggregate), began + begun.timeout / 2)
            return executed.result
        raise SequenceEarly("other deliveries about the aggregate were always quicker")

    def sweep(self) -> None:
        """Run the parked messages whose turn has come, as after a death. Raises SQLAlchemy's errors."""
        due = self._in_session(lambda session, _: self._sequences.due(session), None)
        for aggregate in due:
            self.follow(aggregate, time.monotonic() + _FOLLOWED_SECONDS)

    def follow(self, aggregate: bytes, until: float) -> None:
        """Run the parked messages of an aggregate whose turn it is. What fails is logged, and is tried again later."""
        try:
            while (left := until - time.monotonic()) > 0 and self._run_next(aggregate, left):
                pass
        except Exception as error:  # noqa: BLE001  # whatever it is, it is no outcome of the delivery that was committed before it
            log.warning("parked messages wait on: %s: %s", type(error).__name__, str(error).partition("\n")[0])

    def _park(self, begun: Begun, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Parking:
        arguments = self._arguments.dump(args, kwargs)
        if arguments is None:
            raise SequenceEarly(f"record {begun.record or '-'}: is early, and can't be parked: its payload is no JSON")
        message = message_of(begun)

        def park(session: Session, _: Any) -> Parking:
            found = self._sequences.park(session, message, arguments)
            commit(session)
            return found

        found: Parking = self._in_session(park, None)
        if found is Parking.FULL:
            raise SequenceEarly(f"record {begun.record or '-'}: is early, and max_parked others are parked")
        if found is Parking.PARKED:
            log.info("record %s: parked until the number before %d is applied", begun.named, begun.sequence)
        return found

    def _note(self, error: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Have operators find a delivery that has failed for good, and that others are to wait for."""
        begun = next(iter(current()), None)
        final = isinstance(error, NotRetryable) or (begun is not None and begun.last)
        if begun is None or not final or isinstance(error, _OF_OTHERS) or not self._sequences.parks:
            return
        message = message_of(begun)
        arguments = self._arguments.dump(args, kwargs) or ""

        def note(session: Session, _: Any) -> None:
            self._sequences.note(session, message, arguments, begun.attempt, _reason(error))
            commit(session)

        try:
            self._in_session(note, None)
        except Exception as failed:  # noqa: BLE001  # whatever stands in its way: the delivery has failed all the same
            log.warning("record %s: its failure can't be noted: %s", begun.named, type(failed).__name__)

    def _run_next(self, aggregate: bytes, seconds: float) -> bool:
        """Whether there may be another one."""
        taken: list[Any] = []
        try:
            ran: bool = self._in_session(
                lambda session, of_handler: self._run(session, of_handler, aggregate, taken), seconds
            )
        except Exception as error:
            if not taken:
                raise
            self._failed(taken[0], error)
            return False
        return ran

    def _run(self, session: Session, of_handler: Any, aggregate: bytes, taken: list[Any]) -> bool:
        parked = self._sequences.parked
        row = parked.next(session.connection(), aggregate)
        if row is None:
            return False
        if row.sequence <= row.last:  # it was delivered again, or skipped
            parked.remove(session.connection(), row, counted=False)
            commit(session)
            return True
        taken.append(row)
        numbered = Numbered(aggregate, row.sequence, row.message or "", row.fingerprint, row.consumer)
        entry = self._sequences.decide(session, numbered)
        if entry.decision is not Decision.FIRST:  # another one was quicker
            return False
        arguments = self._arguments.load(row.arguments)
        with executing(self._begun(row)):
            call_within(session, lambda: [self._call(of_handler, (), arguments)], [entry], [0], is_result)
        parked.remove(session.connection(), row, counted=True)
        commit(session)
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
        reason = _reason(error)

        def put_off(session: Session, _: Any) -> None:
            self._sequences.parked.put_off(session.connection(), row, failed=failed, reason=reason, dead=dead)
            commit(session)

        self._in_session(put_off, None)


def _reason(error: Exception) -> str:
    """The error as it is stored, for operators."""
    kind, text = kind_and_text(error)
    return (f"{kind}: {text}" if text else kind).replace("\x00", "\\x00")  # PostgreSQL's text has none
