"""One message on its way through one consumer of FastStream.

Strategy. A delivery is begun in ``consume_scope`` and settled in ``after_processed``, which FastStream calls after the
handler's reply was published and before its own acknowledgement: what is acknowledged has been recorded. The broker's action
is raised (`AckMessage`, `NackMessage`, `RejectMessage`), since a handler that merely returns would publish an
empty reply. ``after_processed`` sees those exceptions, too, and ignores them.
"""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from faststream.exceptions import AckMessage, HandlerException, NackMessage, RejectMessage, SetupError, StopConsume
from faststream.message import SourceType, StreamMessage
from faststream.middlewares import BaseMiddleware

from oncegate.cache.record import StoredResponse
from oncegate.faststream.replies import execute, is_reply_due
from oncegate.faststream.rules import broker_of, message_id, with_ids
from oncegate.middleware.consumers.begun import Begun, Execution, decided, not_kept
from oncegate.middleware.consumers.delivery import Action, Delivery, DeliveryDecision
from oncegate.middleware.consumers.handlers.handling import executing, kept, result_of, settle_raised
from oncegate.middleware.consumers.handlers.sent_back import log_sent_back
from oncegate.middleware.consumers.transactional import Executed
from oncegate.middleware.outcome.errors import NotProcessed, Parked
from oncegate.middleware.outcome.raised import failure_of
from oncegate.middleware.rules.errors import KeyInvalid

if TYPE_CHECKING:
    from oncegate.faststream import SubscriptionMiddleware

log = logging.getLogger("oncegate.faststream")

DEAD_STREAM = ":dead"
"""The end of the name of a Redis stream's dead letters."""


class MessageProcessing(BaseMiddleware[Any, Any]):
    """One message on its way through one consumer."""

    _execution: Execution | None = None
    _message: "StreamMessage[Any]"
    _timed_out = False
    _executed: Executed | None = None
    """The result of a transaction that was committed, with an inbox."""
    _repeats = False
    """It sends the reply again that the hook has kept."""

    def __init__(self, front: "SubscriptionMiddleware", msg: Any, /, *, context: Any) -> None:
        super().__init__(msg, context=context)
        self._front = front

    async def consume_scope(self, call_next: Callable[[Any], Awaitable[Any]], msg: "StreamMessage[Any]") -> Any:
        """Begin the delivery, and call its handler where it is to run. Raises the action for the broker where it isn't."""
        if msg.source_type is SourceType.RESPONSE:  # the answer to a request of ours, not a command
            return await call_next(msg)
        subscriber, handled = self.context.get_local("handler_"), self.context.get_local("message")
        if subscriber is None or handled is None or handled.raw_message is not msg.raw_message:
            # Its end would not be seen. (Another middleware may have passed on a copy, of the same raw message.)
            raise SetupError("oncegate: get_one() and iteration bypass the handler: use Subscription by hand there")
        self._front.check(subscriber)  # a test broker does not start its consumers
        self._message = msg
        begun = await self._begin(msg)
        reply_due = self._front.inbox is not None and is_reply_due(subscriber, handled)
        if reply_due and begun.decision is DeliveryDecision.DUPLICATE and begun.result is not None:
            with suppress(ValueError):  # of another kind than a handler's
                reply, self._repeats = result_of(begun), True
                return reply
        if not begun.run:
            raise await self._exception_for(begun)
        self._execution = begun.execution
        async with asyncio.timeout(self._front.timeout) as limit:
            try:
                with executing(self._execution.context):
                    return await self._handle(functools.partial(call_next, msg), reply_due=reply_due)
            finally:
                self._timed_out = limit.expired()

    async def _handle(self, call: Callable[[], Awaitable[Any]], *, reply_due: bool) -> Any:
        inbox = self._front.inbox
        if inbox is None:
            return await call()
        executed, acknowledged = await execute(inbox, self._front.sessions, self.context, call, reply_due=reply_due)
        self._executed = executed
        if acknowledged is not None:
            raise acknowledged
        if reply_due and not executed.first and not executed.kept:
            raise AckMessage  # what merely returned would publish an empty reply
        return executed.result

    async def _begin(self, msg: "StreamMessage[Any]") -> Begun:
        try:
            delivery = with_ids(self._front.describe(msg), msg)
        except KeyInvalid as error:
            return self._refuse(DeliveryDecision.REJECTED, str(error), msg)
        except Exception as error:  # the user's code, which an update may mend: the message is not lost
            begun = self._refuse(DeliveryDecision.UNAVAILABLE, type(error).__name__, msg)
            log.error("record %s: a message can't be described: %s", begun.named, begun.reason, exc_info=error)
            return begun
        return await self._front.subscription.begin(delivery)

    def _refuse(self, decision: DeliveryDecision, reason: str, msg: "StreamMessage[Any]") -> Begun:
        return self._front.subscription.refuse(
            decision, reason, with_ids(Delivery(None, message_id=message_id(msg)), msg)
        )

    async def after_processed(
        self,
        exc_type: type[BaseException] | None = None,  # noqa: ARG002  # FastStream's signature
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,  # noqa: ARG002  # FastStream's signature
    ) -> bool | None:
        """Record the outcome, before FastStream acknowledges. Raises any other action for the broker."""
        execution = self._execution
        if execution is None:  # not ours to run: parsing failed, or the action was raised already
            if self._repeats and isinstance(exc_val, Exception):
                unsent = decided(DeliveryDecision.UNAVAILABLE, reason="its reply can't be sent")
                raise await self._exception_for(unsent) from exc_val
            return False
        exc_val = None if exc_val is None else failure_of(exc_val)
        if isinstance(exc_val, StopConsume | asyncio.CancelledError | KeyboardInterrupt | SystemExit):
            await execution.abandon("the consumer was stopped")
            if not isinstance(exc_val, asyncio.CancelledError):
                await self._message.nack()
            return False
        await self._settle(execution, exc_val)
        begun = execution.begun
        if begun.action is Action.ACKNOWLEDGE and not isinstance(exc_val, Parked):
            return False
        if isinstance(exc_val, NackMessage) and exc_val.extra_options and begun.action is Action.REDELIVER:
            return False  # with the options that the handler has chosen
        raise await self._exception_for(begun, begun.attempt) from exc_val

    async def _settle(self, execution: Execution, exc_val: BaseException | None) -> None:
        if not isinstance(exc_val, NotProcessed) or isinstance(exc_val, Parked):
            self._front.sent_back = 0
        if exc_val is None or isinstance(exc_val, AckMessage):
            await execution.succeed(self._kept(execution, exc_val))
        elif self._executed is not None:  # its reply can't be sent
            self._log_failure(execution, exc_val)
            await execution.unknown("was committed, but not replied to")
        elif isinstance(exc_val, RejectMessage):
            await execution.fail("rejected by the handler", final=True)
        elif isinstance(exc_val, HandlerException):
            await execution.fail("sent back by the handler")
        else:
            if isinstance(exc_val, NotProcessed):
                log_sent_back(execution.named, exc_val)
                self._front.sent_back += 1
            else:
                self._log_failure(execution, exc_val)
            await settle_raised(execution, exc_val, timed_out=self._timed_out)

    def _kept(self, execution: Execution, acknowledged: AckMessage | None) -> bytes | StoredResponse | None:
        """The result that is kept with an inbox, for a duplicate's reply; none after an `AckMessage`, which replies nothing."""
        if self._executed is None:
            return None
        execution.returned = self._executed.result
        return kept(execution) if acknowledged is None else not_kept()

    async def _exception_for(self, begun: Begun, attempts: int = 1) -> HandlerException:
        """The exception for ``begun.action``, after so many ``attempts`` that have failed."""
        if begun.action is Action.ACKNOWLEDGE:
            return AckMessage()
        if begun.action is Action.DEAD_LETTER:
            log.warning("record %s: dead-lettered as %s, attempt %d", begun.named, _why(begun), begun.attempt)
            try:
                return await self._put_aside(begun)
            except Exception as error:  # noqa: BLE001  # the user's code, or a broker that is away: it must not be lost for that
                log.error("record %s: can't be put aside: %s", begun.named, type(error).__name__)
        broker, pause = (
            broker_of(self.context.get_local("handler_")),
            self._front.pauses.pause(attempts + self._front.sent_back),
        )
        if broker == "nats":
            return NackMessage(delay=pause)
        if broker != "redis":  # there it stays pending, until it is idle for long enough to be claimed
            await asyncio.sleep(pause)
        return NackMessage()

    async def _put_aside(self, begun: Begun) -> HandlerException:
        message, broker = self._message_of(), broker_of(self.context.get_local("handler_"))
        if self._front.dead_letter is not None:
            await self._front.dead_letter(message, begun)
        elif broker == "redis":
            await _to_dead_stream(message, begun, self._front.subscription.name)
        # Redis would leave what is rejected pending, to be claimed for ever, and Kafka commits it.
        return RejectMessage() if broker in ("rabbit", "nats") else AckMessage()

    def _message_of(self) -> "StreamMessage[Any]":
        return cast("StreamMessage[Any]", self.context.get_local("message"))

    def _log_failure(self, execution: Execution, error: BaseException) -> None:
        logger = self.context.get_local("logger") or log
        name = type(error).__name__
        logger.error("record %s: attempt %d failed: %s", execution.named, execution.attempt, name, exc_info=error)


def _why(begun: Begun) -> str:
    return "failed" if begun.run else begun.decision.value


async def _to_dead_stream(message: Any, begun: Begun, name: str) -> None:
    """Copies a Redis entry to the stream's dead letters; it is acknowledged after that. A crash in between copies it twice."""
    raw = message.raw_message
    why = {
        "oncegate-reason": _why(begun),
        "oncegate-record": begun.record,
        "oncegate-attempt": begun.attempt,
        "oncegate-message": begun.origin.message_id,
        "oncegate-correlation": begun.origin.correlation,
        "oncegate-name": name,
    }
    await message.consumer.xadd(raw["channel"] + DEAD_STREAM, raw["data"] | why)
