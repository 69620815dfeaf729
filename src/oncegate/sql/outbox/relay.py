"""`Relay`: publishes what waits in a source, at least once, in order within each aggregate.

Strategy. A batch is taken, published, and settled: what the broker has confirmed is removed, row by row. Each message of an
aggregate waits for the confirmation of the one before it, since a broker may refuse one and take the next; aggregates go beside
each other. Killed anywhere, what was not settled is published again, under the same keys and numbers.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from oncegate.middleware.consumers.sql_interface import Backoff, Traces, given_seconds, is_async, notify
from oncegate.sql.database.errors import is_of_database, reason_of
from oncegate.sql.outbox.publishing import Publish, by_broker, is_away
from oncegate.sql.outbox.sources.outbox_source import OutboxSource
from oncegate.sql.outbox.sources.source import OutboxMessage, RefusedMessage, Source
from oncegate.sql.outbox.wake import Wake

log = logging.getLogger("oncegate.relay")

_LEAST_POLL: Final = 0.02
_MOST_REMEMBERED: Final = 10_000


class RelayWatch(Protocol):
    """Notified of what a relay does, in its event loop; must be quick. What it raises is logged and goes no further.
    `oncegate.prometheus.RelayMetrics` is one.
    """

    def relayed(self, published: int, published_again: int, refused: int) -> None:
        """The broker confirmed or refused so many messages; ``published_again`` of them may have been published before."""

    def backlog_measured(self, rows: int, oldest: float | None, held: int) -> None:
        """``rows`` messages wait, the oldest since ``oldest`` (Unix time); ``held`` of them because they were refused."""


@dataclass(slots=True)
class _Outcome:
    """A batch's messages by what came of each."""

    confirmed: list[OutboxMessage] = field(default_factory=list)
    refused: list[RefusedMessage] = field(default_factory=list)
    unknown: list[OutboxMessage] = field(default_factory=list)
    away: str = ""
    """Why the broker could not be reached, where that is so."""


class Relay:
    """A task that publishes the messages of ``source`` until it is stopped.

    - ``source``: an engine, for all outboxes of its database, an `OutboxSource` or a `TableSource`.
    - ``publish``: a connected broker of FastStream's, or a coroutine function of an `OutboxMessage` that returns when the
      broker has confirmed it.
    - ``batch``: how many messages are taken at a time.
    - ``confirm_timeout``: seconds that a batch's confirmations are awaited; a message without one is published again.
    - ``poll``: seconds between two looks at most, where nothing waits. A commit of `Outbox.add` in this process is seen at
      once.
    - ``log_every``: seconds between lines in the log that say how it goes.
    - ``watch``: notified of the same.
    - ``tracing``: traces what is published: an `oncegate.otel.Tracing`.
    """

    def __init__(
        self,
        source: Source | AsyncEngine | Engine,
        publish: Publish | Any,
        *,
        batch: int = 200,
        confirm_timeout: float = 10.0,
        poll: float = 1.0,
        log_every: float = 30.0,
        watch: RelayWatch | None = None,
        tracing: Traces | None = None,
    ) -> None:
        confirm_timeout, poll = given_seconds(confirm_timeout=confirm_timeout, poll=poll)
        (log_every,) = given_seconds(log_every=log_every)
        if batch < 1 or not (confirm_timeout > 0 and poll > 0 and log_every > 0):
            raise ValueError("batch is 1 or more; confirm_timeout, poll and log_every are above 0 seconds")
        self._source = OutboxSource(source) if isinstance(source, AsyncEngine | Engine) else source
        stall_limit = getattr(self._source, "stall_limit", None)
        if stall_limit is not None and stall_limit <= confirm_timeout:
            raise ValueError(
                f"stall_limit is {stall_limit:g} s: give more than the {confirm_timeout:g} s in which a batch is confirmed"
            )
        page = getattr(self._source, "page", None)
        if page is not None and page > batch:
            raise ValueError(f"page is {page}, of a batch of {batch}: give as many at most")
        self._publish: Publish = publish if is_async(publish) else by_broker(publish)
        if tracing is not None:
            self._publish = tracing.publishing(self._publish)
        self._batch = batch
        self._confirm_timeout = confirm_timeout
        self._log_every = log_every
        self._watch = watch
        self._idle = Backoff(_LEAST_POLL, poll, least=0.5)
        self._trouble = Backoff(0.1, max(poll, 5.0), least=0.5)
        self._stopping = False
        self._wake: Wake | None = None
        self._unknown: set[Any] = set()
        """Positions of what was sent, and not settled."""
        self._counts = [0, 0, 0]

    def stop(self) -> None:
        """Have `run` return once the batch under way is settled."""
        self._stopping = True
        if self._wake is not None:
            self._wake.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """While it is entered the relay is at work, in this event loop."""
        task = asyncio.create_task(self.run())
        try:
            yield
        finally:
            self.stop()
            await task

    async def run(self) -> None:
        """Publish, until `stop`. A database or a broker that is away is waited for."""
        self._wake = wake = Wake()
        loop = asyncio.get_running_loop()
        log.info("the relay of outboxes: %s has begun", self._source.name)
        idle = trouble = 0
        next_report = loop.time()
        try:
            while not self._stopping:
                if loop.time() >= next_report:
                    next_report = loop.time() + self._log_every
                    await self._report()
                found = await self.publish_batch()
                trouble = trouble + 1 if found is None else 0
                idle = 0 if found else idle + 1
                if trouble:
                    await wake.wait(self._trouble.pause(trouble))
                elif idle:
                    await wake.wait(self._idle.pause(idle))
        finally:
            await self._source.close()
            self._wake = None
            log.info("the relay has stopped")

    async def publish_batch(self) -> int | None:
        """How many messages of one batch were confirmed or refused; ``None`` where database or broker are away."""
        try:
            messages = await self._source.take(self._batch)
            if not messages:
                await self._source.let_go()
                return 0
        except Exception as error:  # noqa: BLE001  # `_log_database` raises what is not the database's
            await self._source.let_go()
            _log_database(error)
            return None
        outcome = await self._published(messages)
        again = len(self._unknown.intersection(message.position for message in outcome.confirmed))
        try:
            await self._source.settle(outcome.confirmed, outcome.refused)
        except Exception as error:  # noqa: BLE001  # `_log_database` raises what is not the database's
            outcome.unknown += outcome.confirmed
            self._remember(outcome)
            _log_database(error)
            return None
        self._unknown.difference_update(message.position for message in outcome.confirmed)
        self._remember(outcome)
        self._count(len(outcome.confirmed), again, outcome.refused)
        if outcome.away:
            log.warning("the broker can't be reached, or confirms nothing: %s", outcome.away)
            return None
        return len(outcome.confirmed) + len(outcome.refused)

    async def _published(self, messages: Sequence[OutboxMessage]) -> _Outcome:
        """Publish a batch; its outcome, as far as it is known in time."""
        lines: defaultdict[Any, list[OutboxMessage]] = defaultdict(list)
        for message in messages:
            lines[message.position if message.line is None else (message.line,)].append(message)
        outcome = _Outcome()
        until = asyncio.get_running_loop().time() + self._confirm_timeout
        tasks = [asyncio.create_task(self._publish_line(line, outcome, until)) for line in lines.values()]
        try:
            _, late = await asyncio.wait(tasks, timeout=self._confirm_timeout)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if late:
            outcome.away = outcome.away or f"no confirmation within {self._confirm_timeout:g} s"
        return outcome

    async def _publish_line(self, line: Sequence[OutboxMessage], outcome: _Outcome, until: float) -> None:
        """One after the other: what is behind a message that isn't confirmed waits for it."""
        loop = asyncio.get_running_loop()
        for message in line:
            if outcome.away or loop.time() >= until:  # who stood still sends nothing any more
                return
            try:
                await self._publish(message)
            except Exception as error:  # noqa: BLE001  # of a broker, or of a user's function
                reason = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
                if is_away(error):
                    outcome.unknown.append(message)
                    outcome.away = reason
                    return
                outcome.refused.append(RefusedMessage(message, reason))
                return
            except BaseException:  # cancelled: it may have been sent
                outcome.unknown.append(message)
                raise
            outcome.confirmed.append(message)

    def _remember(self, outcome: _Outcome) -> None:
        if len(self._unknown) > _MOST_REMEMBERED:
            self._unknown.clear()
        self._unknown.update(message.position for message in outcome.unknown)

    def _count(self, published: int, again: int, refused: Sequence[RefusedMessage]) -> None:
        for refusal in refused:
            attempt = refusal.message.attempts + 1
            log.warning("row %s was refused, attempt %d: %s", refusal.message.position, attempt, refusal.reason)
        for number, count in enumerate((published, again, len(refused))):
            self._counts[number] += count
        if self._watch is not None:
            notify(self._watch.relayed, published, again, len(refused))

    async def _report(self) -> None:
        try:
            backlog = await self._source.measure()
        except Exception as error:  # noqa: BLE001  # `_log_database` raises what is not the database's
            _log_database(error)
            return
        log.info(
            "%d rows wait, the oldest since %s, %d held up; published %d, %d of them again, refused %d",
            backlog.rows,
            backlog.oldest.isoformat() if backlog.oldest else "-",
            backlog.held,
            *self._counts,
        )
        if self._watch is not None:
            oldest = backlog.oldest.timestamp() if backlog.oldest else None
            notify(self._watch.backlog_measured, backlog.rows, oldest, backlog.held)


def _log_database(error: Exception) -> None:
    """Raises ``error`` where it is none of a database's."""
    if not is_of_database(error):
        raise error
    log.warning("the database can't be used: %s: %s", type(error).__name__, reason_of(error))
