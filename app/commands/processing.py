"""Processes one stream entry: the subscription decides, the executor runs the command, and the outcome is recorded.

Nothing here acknowledges an entry. A `Disposition` says what to do with it, and is returned only once the outcome is recorded;
where it can't be, the entry is processed again later.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from oncegate.app.commands.alone import Alone
from oncegate.app.commands.executor import CommandFailed, CommandPutOff, CommandRefused, Executor, context_of
from oncegate.app.commands.submission_life import SubmissionLife
from oncegate.cache.backoff import Backoff
from oncegate.cache.encryption import Encryption, off_loop
from oncegate.cache.record import StoredResponse
from oncegate.cache.redis.streams.encrypted import decrypted, encrypted_death
from oncegate.cache.redis.streams.letter import Death
from oncegate.cache.redis.streams.stream import Command, NotACommand, sent_ms
from oncegate.middleware.consumers.begun import FAILED_STATUS, Begun, Execution, Recording
from oncegate.middleware.consumers.delivery import Action, Delivery, DeliveryDecision, broker_time
from oncegate.middleware.consumers.handlers.handling import executing, settle_raised
from oncegate.middleware.consumers.handlers.sent_back import is_of_inbox, others_since
from oncegate.middleware.consumers.subscription import Subscription
from oncegate.middleware.outcome.calling import call
from oncegate.middleware.outcome.errors import ENDS_PROCESS, NotProcessed, NotRetryable, OutcomeUnknown, Parked
from oncegate.middleware.outcome.raised import kind_and_place, kind_and_text
from oncegate.middleware.outcome.responses import now_ms
from oncegate.middleware.outcome.results import read_error
from oncegate.middleware.rules.keys.key import scope_digests

log = logging.getLogger("oncegate.worker")

_CONSUMER = b"consumer"
"""The field of an entry that is meant for one consumer alone: of a dead letter that was retried."""


@dataclass(frozen=True, slots=True)
class Disposition:
    """The next step with an entry.

    ``again`` is the seconds until it is to be processed again; ``None``: it is done with, and ``death``, where there is one,
    holds the dead letter's additional fields. ``ends``: the worker is to stop. ``copy_of`` is the command of which another
    entry may have become a dead letter for the same attempts, at ``since_ms`` (Unix time) or later.
    """

    again: float | None = None
    death: Mapping[bytes, bytes] | None = None
    ends: bool = False
    copy_of: str = ""
    since_ms: int = 0


DONE = Disposition()
_ENDED = (DeliveryDecision.RUN, DeliveryDecision.EXHAUSTED)
"""Decisions after which a dead letter is the end of this command's own execution."""


class Processing:
    """The processing of entries under ``subscription`` by ``executor``. ``life`` ties their records together.

    ``backoff`` is for commands that failed; what can't be decided yet, because it is in flight elsewhere or the cache does
    not answer, is tried again after ``recheck``'s pauses. ``worker`` is the name that dead letters carry.
    """

    def __init__(
        self,
        subscription: Subscription,
        executor: Executor,
        backoff: Backoff,
        recheck: Backoff,
        worker: str,
        life: SubmissionLife,
        encryption: Encryption | None = None,
    ) -> None:
        self._life = life
        self._alone = Alone()
        self._subscription = subscription
        self._nameless = scope_digests(None, subscription.digests)
        self._executor = executor
        self._backoff = backoff
        self._recheck = recheck
        self._worker = worker
        self._encryption = encryption

    async def process(self, entry: bytes, fields: Mapping[bytes, bytes], tries: int) -> Disposition:
        """Process one entry, for the ``tries``-th time. Raises a cancellation, and `CacheError`: it is to be tried again."""
        meant_for = fields.get(_CONSUMER)
        if meant_for and meant_for != self._subscription.consumer.encode():
            return DONE
        try:
            size = 0 if self._encryption is None else len(fields.get(b"body", b""))
            command = Command.read(await off_loop(size, decrypted, fields, self._encryption))
        except NotACommand as error:
            log.error("entry %s: is no command, and becomes a dead letter: %s", entry.decode(), error)
            self._subscription.dead_lettered("undecodable")
            return self._dead(entry, "undecodable", 0, ("NotACommand", str(error)))
        await self._alone.enter()
        alone = False
        since_ms = now_ms()
        try:
            begun = await self._begin(command, entry)
            after = 0.0
            if begun.run:
                execution = begun.execution
                if execution.after_a_crash:
                    alone = await self._alone.alone()
                    if not alone:
                        await execution.release()  # another one is tried alone: this one must not die with it
                        return Disposition(again=self._recheck.pause(tries))
                after = await self._execute(execution, command, entry)
                begun = execution.begun
        finally:
            self._alone.leave(alone=alone)
        return await self._dispose(begun, command, entry, tries, after, since_ms)

    async def _begin(self, command: Command, entry: bytes) -> Begun:
        return await self._subscription.begin(
            Delivery(
                key=command.key,
                record=command.command,
                fingerprint=command.fingerprint,
                attempts_before=command.attempts_before,
                message_id=entry,
                correlation=command.correlation,
                sent_at=broker_time(sent_ms(b"%d" % command.accepted_at_ms, entry)),
                aggregate=command.aggregate,
                sequence=command.sequence,
                traceparent=command.traceparent,
            )
        )

    async def _dispose(
        self, begun: Begun, command: Command, entry: bytes, tries: int, after: float, since_ms: int
    ) -> Disposition:
        # Both records live for as long as the longer one: else the key would be free while its execution is still known.
        if begun.action is Action.ACKNOWLEDGE or (begun.action is Action.DEAD_LETTER and begun.decision in _ENDED):
            await self._life.tie(command, entry.decode())
        if begun.action is Action.ACKNOWLEDGE:
            return DONE
        if begun.action is Action.DEAD_LETTER:
            return self._given_up(entry, begun, command, since_ms)
        if isinstance(_raised(begun), ENDS_PROCESS):
            return Disposition(again=0.0, ends=True)
        return Disposition(again=self._pause(begun, command, tries, after))

    async def _execute(self, execution: Execution, command: Command, entry: bytes) -> float:
        """Execute a command that is to run and record what came of it; the least seconds until another attempt."""
        context = context_of(command, entry.decode(), execution.attempt, self._nameless)
        trace = execution.context.trace
        if trace is not None:
            context = replace(context, traceparent=trace.traceparent)
        timeout = self._subscription.settings.attempt_timeout if self._executor.can_be_cut else None
        after = 0.0
        try:
            async with asyncio.timeout(timeout) as limit:
                with executing(execution.context):
                    response = await call(self._executor.execute, command, context, execution.confirm, in_loop=True)
        except asyncio.CancelledError:  # the worker's end
            raise
        except BaseException as error:  # noqa: BLE001  # whatever an executor raises is its command's outcome
            self._log(execution.begun, error)
            after = error.after if isinstance(error, CommandPutOff | CommandFailed) else 0.0
            status = error.status if isinstance(error, CommandRefused | CommandFailed) else FAILED_STATUS
            await settle_raised(execution, error, timed_out=limit.expired(), status=status)
        else:
            await execution.succeed(response)
        while await execution.recorded() is Recording.PENDING:  # for as long as the cache is away
            log.warning(
                "record %s: the outcome is still not recorded; nothing is acknowledged until it is", execution.named
            )
        return after

    def _log(self, begun: Begun, error: BaseException) -> None:
        """Log the error beside the line of `Execution`, which has only its type."""
        # The text of an error that is not ours may hold something of a command.
        text = f": {kind_and_text(error)[1]}" if self._executor.loggable or is_of_inbox(error) else ""
        kind = type(error).__name__
        if isinstance(error, Parked):
            log.info("record %s: parked until its turn has come", begun.named)
        elif isinstance(error, NotProcessed):
            others = others_since(type(error), kind + text)
            level = logging.DEBUG if others is None else logging.WARNING
            log.log(level, "record %s: nothing was begun: %s%s%s", begun.named, kind, text, others or "")
        elif isinstance(error, OutcomeUnknown):
            log.warning("record %s: attempt %d has no known outcome: %s%s", begun.named, begun.attempt, kind, text)
        elif isinstance(error, ENDS_PROCESS):
            log.error("record %s: the handler raised %s: the worker stops", begun.named, kind)
        else:
            log.debug("record %s: raised %s", begun.named, kind_and_place(error))

    def _pause(self, begun: Begun, command: Command, tries: int, after: float) -> float:
        if begun.run and not isinstance(_raised(begun), NotProcessed | None):
            pause = max(after, self._backoff.pause(begun.attempt - command.attempts_before))
            # After its time the record is gone, and its count of attempts: the command would never become a dead letter.
            return min(pause, self._subscription.settings.ttl / 2)
        if begun.run:  # nothing was begun, or it came too late: no attempt, so what counts is how often it was tried
            return max(after, self._backoff.pause(tries))
        log.debug("record %s: %s", begun.named, begun.decision.value)
        return self._recheck.pause(tries)

    def _given_up(self, entry: bytes, begun: Begun, command: Command, since_ms: int) -> Disposition:
        raised = _raised(begun)
        kind, text = _kept_error(begun.response) if raised is None else kind_and_text(raised)
        reason = begun.decision.value
        if begun.run:
            reason = "rejected" if isinstance(raised, NotRetryable) else DeliveryDecision.EXHAUSTED.value
        log.error("record %s: becomes a dead letter after %d attempts: %s", begun.named, begun.attempt, reason)
        dead = self._dead(entry, reason, begun.attempt, (kind, text or begun.reason), command.command)
        # A copy may be quicker with its letter than the entry that was executed. An older one is of an earlier record's attempts.
        return replace(dead, copy_of=command.command, since_ms=since_ms if begun.run else 0)

    def _dead(self, entry: bytes, reason: str, attempts: int, error: tuple[str, str], command: str = "") -> Disposition:
        consumer = self._subscription.consumer
        death = Death(consumer, reason, attempts, *error, entry.decode(), self._worker, now_ms()).fields()
        return Disposition(death=encrypted_death(death, command, self._encryption) if command else death)


def _raised(begun: Begun) -> BaseException | None:
    return begun.execution.raised if begun.run else None


def _kept_error(response: StoredResponse | None) -> tuple[str, str]:
    """The type and text of a kept error."""
    members = read_error(response)
    return str(members.get("type", "")), str(members.get("message", ""))
