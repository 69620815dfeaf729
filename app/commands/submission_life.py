"""Keeps a submission's record and its execution's for the same time, whichever of their times is longer.

Strategy. What is processed is decided by the execution's record, what is accepted by the submission's. Were the execution's to
outlive the other, a key that is free again would be accepted anew and skipped as processed; the other way round, a status would
turn from succeeded back to accepted. So before an entry is acknowledged its submission is made to live for as long as its
execution, as a rule in the very step that records a success, and its execution for as long as its submission. A submission whose
time was over before (the command had waited for long) is written again, with the answer that it had.
"""

import asyncio

from oncegate.app.commands.submit import accepted
from oncegate.cache.backoff import Backoff
from oncegate.cache.record import StoredResponse
from oncegate.cache.redis.streams.stream import Command
from oncegate.cache.store import KeepsSubmissions
from oncegate.middleware.consumers.late_outcomes import AHEAD_MS
from oncegate.middleware.outcome.responses import now_ms
from oncegate.middleware.rules.keys.key import execution_key, key_of_id

_TRIES, _PAUSES = 4, Backoff(0.01, 1.0, least=1.0, factor=5.0)
"""Seconds to wait for a gateway to record what it has just accepted."""


class SubmissionLife:
    """The lives of the records of commands in ``namespace``, tied together as ``consumer`` executes them.

    ``ttl`` (s) is how long its outcomes are kept; ``prefix`` is the gateway's, for the address in an answer.
    """

    def __init__(self, cache: KeepsSubmissions, namespace: str, consumer: str, *, prefix: str, ttl: float) -> None:
        self._cache = cache
        self._namespace = namespace
        self._consumer = consumer
        self._prefix = prefix
        self._ttl_ms = round(ttl * 1000)

    async def tie(self, command: Command, entry: str) -> None:
        """Let both records of ``command``, which is in the stream as ``entry``, live for as long as the longer one.

        Raises `CacheError`.
        """
        key = key_of_id(self._namespace, command.command)
        execution = execution_key(key, self._consumer)
        left = self._cache.submission_left_ms(execution) or await self._outlast(key, command, entry)
        if left > self._ttl_ms + AHEAD_MS:
            await self._cache.prolong(execution, ttl_ms=left - AHEAD_MS)

    async def _outlast(self, key: str, command: Command, entry: str) -> int:
        headers, body = accepted(self._prefix, command.command, entry, command.sequence)
        now = now_ms()
        at_ms = command.accepted_at_ms if 0 < command.accepted_at_ms < now else now  # any client may have written it
        record = command.record(StoredResponse(202, headers, body, at_ms))
        ttl_ms = self._ttl_ms + AHEAD_MS
        tries = 0
        while (left := await self._cache.outlast(key, record, ttl_ms=ttl_ms)) < 0 and tries < _TRIES:
            tries += 1
            await asyncio.sleep(_PAUSES.pause(tries))
        return left
