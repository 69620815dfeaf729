"""Requests that need a slot while nobody knows yet whether one is free: claims are under way that may turn out to be replays.

Strategy. A claim takes its slot before it is sent, also where it finds a result. So without a free slot the record is read: a
replay needs none. Who needs one waits here until the claims under way are answered, in order, and is refused only once those
that are known to run leave it none. Nobody waits for an attempt, nor for longer than the cache's time-out.

What one caller may have of them is a part beside this (`oncegate.middleware.admission.limits.callers.CallerSlots`).
"""
# Compiled: docs/decisions/0012-compiled.md

import asyncio
from collections import deque
from typing import Final

from oncegate.cache.callbacks import set_reply
from oncegate.middleware.rules.errors import Overloaded

PROCESS: Final = ""
"""The line of those who wait for a slot of the process; any other one is a caller's."""


class Slot:
    """A slot of the process that is taken: `won` or `lost` by its claim, and free again by `leave`."""

    __slots__ = ("slots",)

    def __init__(self, slots: "Slots") -> None:
        self.slots = slots

    def won(self, *, is_new: bool = True) -> None:  # noqa: ARG002  # counts where callers have limits
        """The slot is needed, until `leave`. ``is_new``: the key was free, and counts as a new one of its caller."""
        slots = self.slots
        slots.claims -= 1
        if slots.lines:
            self.changed()

    def lost(self, *, is_new: bool = False) -> None:  # noqa: ARG002  # as above
        """The slot is not needed, and free again. ``is_new``: what becomes of the claim is not known, and it counts."""
        slots = self.slots
        slots.claims -= 1
        slots.taken -= 1
        if slots.lines:
            self.changed()

    def leave(self) -> None:
        """The slot is free again, after it was `won`."""
        slots = self.slots
        slots.taken -= 1
        if slots.lines:
            self.changed()

    def changed(self) -> None:
        """Something is known now for who waits longest."""
        self.slots.serve(PROCESS)


class Waiter:
    """One request that waits for a slot. ``is_new``: no record is held under its key."""

    __slots__ = ("caller", "is_new", "is_over", "reply", "slot")

    def __init__(self, caller: str, is_new: bool) -> None:
        self.caller = caller
        self.is_new = is_new
        self.slot: Slot | None = None
        self.is_over = False
        self.reply: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def end(self, error: Exception | None) -> None:
        """It is decided; the loop that waits may be another one."""
        self.is_over = True
        self.reply.get_loop().call_soon_threadsafe(set_reply, self.reply, error)


class Slots:
    """The slots of one process: ``taken`` of ``most``, of which ``claims`` are under way."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0
        self.claims = 0
        self.lines: dict[str, deque[Waiter]] = {}
        """Who waits: in the line of the process, or in its caller's."""
        self.any = Slot(self)
        """Stands for each slot: they are all alike."""

    def enter(self, key: str) -> Slot | None:  # noqa: ARG002  # whose caller counts where callers have limits
        """Take a slot for a claim of the look-up key ``key``, if one is left and nobody waits for it.

        Whether it is needed isn't known until `Slot.won` or `Slot.lost`.
        """
        if self.taken >= self.most or self.lines:
            return None
        self.taken += 1
        self.claims += 1
        return self.any

    async def wait(self, key: str, timeout: float, *, is_new: bool) -> Slot:
        """Take a slot for a claim as soon as it is known that one is free. ``is_new``: no record is held under the key.

        The claim counts as under way from then on.

        Raises `Overloaded` or `TooManyKeys` where none is, or after ``timeout`` seconds.
        """
        waiter = Waiter(self.caller(key), is_new)
        line = self.blocked(waiter)
        if line is None:
            return self.take(waiter.caller)
        if self.is_certain(line, waiter):
            raise self.refusal(line, waiter)
        self.lines.setdefault(line, deque()).append(waiter)
        timer = asyncio.get_running_loop().call_later(timeout, self._time_out, waiter)
        try:
            error = await waiter.reply
        except BaseException:
            if waiter.slot is not None:
                waiter.slot.lost()
            waiter.is_over = True
            raise
        finally:
            timer.cancel()
        if waiter.slot is None:
            raise error or self.refusal(line, waiter)
        return waiter.slot

    # -- who may have one ---------------------------------------------------------------------------------------------

    def caller(self, key: str) -> str:  # noqa: ARG002  # as above
        """Whose slot one for this look-up key is."""
        return PROCESS

    def take(self, caller: str) -> Slot:  # noqa: ARG002  # as above
        """Take a slot that is free."""
        self.taken += 1
        self.claims += 1
        return self.any

    def blocked(self, waiter: Waiter) -> str | None:  # noqa: ARG002  # as above
        """The line in which to wait; ``None`` where a slot is free."""
        return PROCESS if self.taken >= self.most else None

    def is_certain(self, line: str, waiter: Waiter) -> bool:  # noqa: ARG002  # as above
        """Whether there is none whatever the claims under way are answered."""
        return self.taken - self.claims >= self.most

    def refusal(self, line: str, waiter: Waiter) -> Exception:  # noqa: ARG002  # as above
        """The error for a request that has waited in ``line`` in vain."""
        return Overloaded("Too many requests are being executed: try again later.")

    def serve(self, name: str) -> None:
        """Decide about those in the line ``name``, in their order, as far as is known by now."""
        line = self.lines.get(name)
        while line:
            waiter = line[0]
            if not waiter.is_over:
                blocked = self.blocked(waiter)
                if blocked is None:
                    waiter.slot = self.take(waiter.caller)
                    waiter.end(None)
                elif self.is_certain(blocked, waiter):
                    waiter.end(self.refusal(blocked, waiter))
                elif blocked != name:
                    self.lines.setdefault(blocked, deque()).append(waiter)
                else:
                    return
            line.popleft()
        self.lines.pop(name, None)

    def limit(self, most: int) -> None:
        """There are ``most`` from now on. Attempts that run beyond it go on."""
        self.most = most
        self.serve(PROCESS)

    def _time_out(self, waiter: Waiter) -> None:
        if waiter.is_over:
            return
        line = self.blocked(waiter)
        if line is None:
            waiter.slot = self.take(waiter.caller)
            waiter.end(None)
        else:
            waiter.end(self.refusal(line, waiter))
        for name in (PROCESS, waiter.caller):
            self.serve(name)
