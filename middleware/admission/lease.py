"""The lease of an attempt: confirmed before the first byte is sent, renewed while its command runs; and the end of its time.

Strategy. As a rule an attempt is over long before any of this is due, and shares a timer with others until then. What lasts gets
a timer of its own, which renews the lease at every third of it, and cancels the command's task after ``attempt_timeout``.
"""
# Compiled: docs/decisions/0012-compiled.md

import asyncio
import logging
from collections.abc import Callable, MutableMapping
from time import monotonic
from typing import Any, Final

from oncegate.cache.errors import CacheError
from oncegate.middleware.admission.limits.deadlines import Deadlines
from oncegate.middleware.admission.shared import Shared, notify
from oncegate.middleware.outcome.errors import NotProcessed
from oncegate.middleware.rules.headers.request_id import ids
from oncegate.middleware.rules.keys.key import record_id
from oncegate.middleware.rules.policy import Policy

log = logging.getLogger("oncegate.attempt")
_monotonic: Final = monotonic  # a module's own name takes no look into a dict, compiled


class LeaseLost(NotProcessed):
    """Before anything was sent, another owner was found to have taken over the attempt's record."""


class Unconfirmed(NotProcessed):
    """Before anything was sent, the cache could not say whether the attempt is still ours."""


class Lease:
    """A lease of the record under ``key``, by its owner's ``token``, held since ``held_since``; and the run under it.

    ``number`` is the attempt's, 0 where there is no record to be held. ``overdue``: the command's ``task`` was cancelled after
    ``attempt_timeout``.
    """

    __slots__ = (
        "_is_ended",
        "_is_lost",
        "_limit",
        "_limits",
        "_policy",
        "_shared",
        "_timer",
        "began",
        "held_since",
        "is_noted",
        "key",
        "loop",
        "number",
        "origin",
        "overdue",
        "scope",
        "task",
        "token",
    )

    _limit: int
    """Its number among the ``_limits``, where there are any."""

    def __init__(self, shared: Shared, key: str, token: bytes, policy: Policy, held_since: float) -> None:
        self.key = key
        self.token = token
        self.held_since = held_since
        """Since before the claim was sent, or the last renewal: so never longer than the cache counts it."""
        self.number = 0
        self.origin = ""
        """The text behind the record's id in logs: the ids of a consumer's message."""
        self.scope: MutableMapping[str, Any] | None = None
        """The ASGI scope of the request whose command is executed, for what the log says of it."""
        self.began = held_since
        """The time at which the command's execution began."""
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop that it runs in, once it does."""
        self.task: asyncio.Future[None] | None = None
        """Done when the command's execution is; cancelled where it runs out of time. ``None`` while there is none."""
        self.is_noted = False
        """It takes longer than most, and the watch was notified."""
        self.overdue = False
        self._shared = shared
        self._policy = policy
        self._is_lost = False
        self._is_ended = False
        self._timer: asyncio.TimerHandle | None = None
        self._limits: Deadlines | None = None

    @property
    def named(self) -> str:
        """How a line of the log names the attempt."""
        return record_id(self.key) + self.origin

    def ids(self) -> dict[str, str]:
        """The members of a log's line about the attempt, beside that name."""
        return ids(self.scope, self._policy.unshown)

    # -- confirmed ----------------------------------------------------------------------------------------------------

    @property
    def is_certain(self) -> bool:
        """Whether it is ours for half its length from now, or there is no record: then `confirm` returns at once."""
        return not self.number or _monotonic() - self.held_since < self._policy.lease_ms / 2000

    async def confirm(self) -> None:
        """Return once it is certain to be ours for half its length; to be awaited before the first byte is sent.

        An owner that was paused (SIGSTOP, a frozen virtual machine) must not run beside its successor. Raises `LeaseLost`;
        and `Unconfirmed` where the cache does not answer, unless the policy is to fail open.
        """
        if self.is_certain:
            return
        try:
            if not await self._renewed():
                raise LeaseLost("the attempt was taken over before it began")
        except CacheError as error:
            if not self._policy.fails_open:
                raise Unconfirmed(str(error)) from error

    # -- renewed, for as long as the command runs ---------------------------------------------------------------------

    def start(self, loop: asyncio.AbstractEventLoop, lasts: Callable[[], None] | None) -> None:
        """The command is executed from now on. ``lasts`` is called after ``Policy.soon``, unless it has ended before."""
        self.loop = loop
        self.began = _monotonic()
        if lasts is not None:
            self._limits = self._shared.limits.on(loop, self._policy.soon)
            self._limit = self._limits.set(lasts)

    def keep(self, task: "asyncio.Future[None]") -> None:
        """``task`` executes the command: renew the lease from now on, and cancel the task after ``attempt_timeout``."""
        self._unschedule()
        self.task = task
        self._note()
        policy = self._policy
        heartbeat = policy.heartbeat
        if self.number and self.began - self.held_since < heartbeat / 4 and self._limits is None:
            # The usual attempt is over long before this, and shares its timer with the others.
            self._limits = self._shared.limits.on(task.get_loop(), min(heartbeat, policy.attempt_timeout))
            self._limit = self._limits.set(self._tick)
        else:
            self._schedule()

    def adopt(self, number: int) -> None:
        """There is a record to be held after all, of the attempt ``number``."""
        self.number = number
        if self.task is not None and not self._is_ended:
            self._note()
            self._schedule()

    def end(self) -> None:
        """The command's outcome is known: nothing is renewed any more."""
        self._is_ended = True
        if self._limits is not None:  # as `_unschedule`, which each request would pay for
            self._limits.drop(self._limit)
        if self._timer is not None:
            self._timer.cancel()

    def _note(self) -> None:
        if self.number and not self.is_noted:
            self.is_noted = True
            notify(self._shared.watch.outcome_pending, record_id(self.key))

    def _schedule(self) -> None:
        self._unschedule()
        now, policy = monotonic(), self._policy
        wait = self.began + policy.attempt_timeout - now
        if self.number and not self._is_lost:
            heartbeat = policy.heartbeat
            # At least a quarter of it from now: a cache that fails at once is not called in a busy loop.
            wait = min(wait, max(self.held_since + heartbeat - now, heartbeat / 4))
        self._timer = asyncio.get_running_loop().call_later(max(0.0, wait), self._tick)

    def _unschedule(self) -> None:
        if self._limits is not None:
            self._limits.drop(self._limit)
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        if self._is_ended or self.task is None or self.task.done():
            return
        if monotonic() >= self.began + self._policy.attempt_timeout:
            log.warning("record %s: attempt %d ran into attempt_timeout", self.named, self.number, extra=self.ids())
            self.overdue = True
            self.task.cancel()
        else:
            self._shared.in_background(self._renew())

    async def _renew(self) -> None:
        try:
            self._is_lost = not await self._renewed()
        except Exception as error:  # noqa: BLE001  # a cache of one's own may raise anything: it is tried again
            log.warning("record %s: the lease could not be renewed: %s", self.named, error, extra=self.ids())
        if self._is_ended:
            return
        if self._is_lost:
            log.warning("record %s: attempt %d lost its lease and runs on", self.named, self.number, extra=self.ids())
            notify(self._shared.watch.lease_lost, self._policy.route)
        self._schedule()

    async def _renewed(self) -> bool:
        sent = monotonic()
        renewing = self._shared.cache.renew(self.key, token=self.token, lease_ms=self._policy.lease_ms)
        ours: object = await self._shared.timed("renew", renewing)  # a cache of one's own may say 1
        if ours:
            self.held_since = sent
        return bool(ours)
