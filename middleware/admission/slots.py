"""Requests that need a slot while nobody knows yet whether one is free: claims are under way that may turn out to be replays.

Strategy. A claim takes its slot before it is sent, also where it finds a result. So without a free slot the record is read: a
replay needs none. Who needs one waits here until the claims under way are answered, in order, and is refused only once those
that are known to run leave it none. Nobody waits for an attempt, nor for longer than the cache's time-out.
"""
# Compiled: docs/decisions/0012-compiled.md

import asyncio
from collections import deque
from typing import Final

from oncegate.cache.store import set_reply
from oncegate.middleware.admission.callers import CallerLimits
from oncegate.middleware.rules.errors import Overloaded, TooManyKeys

_PROCESS: Final = ""
"""The line of those who wait for a slot of the process; any other one is a caller's."""


class Slots:
    """The slots of one process: ``taken`` of ``most``, of which ``claims`` are under way; each caller's by ``callers``."""

    def __init__(self, most: int, callers: CallerLimits | None) -> None:
        self.most = most
        self.callers = callers
        self.taken = 0
        self.claims = 0
        self._lines: dict[str, deque[_Waiter]] = {}

    def enter(self, key: str) -> bool:
        """Take a slot for a claim of the look-up key ``key``, if one is left, also for its caller, and nobody waits for it.

        Whether the slot is needed isn't known until `claim_won` or `claim_lost`.
        """
        if self.taken >= self.most:
            return False
        if self._lines and _PROCESS in self._lines:
            return False
        callers = self.callers
        if callers is not None:
            if self._lines and callers.name(key) in self._lines:
                return False
            if callers.wait(key) > 0:
                return False
            callers.take(key)
        self.taken += 1
        self.claims += 1
        return True

    def leave(self, key: str) -> None:
        """A slot is free again that was taken for the record of the look-up key ``key``."""
        self.taken -= 1
        if self.callers is not None:
            self.callers.give_back(key)
        if self._lines:
            self._changed(key)

    def claim_won(self, key: str, *, is_new: bool = True) -> None:
        """The slot is needed. ``is_new``: the key was free, and counts as a new one of its caller."""
        self.claims -= 1
        if self.callers is not None:
            self.callers.claim_ended(key, is_new=is_new)
        if self._lines:
            self._changed(key)

    def claim_lost(self, key: str, *, is_new: bool = False) -> None:
        """The slot is not needed, and free again. ``is_new``: what becomes of the claim is not known, and it counts."""
        self.claims -= 1
        self.taken -= 1
        callers = self.callers
        if callers is not None:
            callers.claim_ended(key, is_new=is_new)
            callers.give_back(key)
        if self._lines:
            self._changed(key)

    async def wait(self, key: str, timeout: float, *, is_new: bool) -> None:
        """Take a slot for a claim as soon as it is known that one is free. ``is_new``: no record is held under the key.

        The claim counts as under way from then on.

        Raises `Overloaded` or `TooManyKeys` where none is, or after ``timeout`` seconds.
        """
        line = self._blocked(key, is_new)
        if line is None:
            self._take(key)
            return
        if self._is_certain(line, key, is_new):
            raise self._refusal(line, key, is_new)
        waiter = _Waiter(key, is_new)
        self._lines.setdefault(line, deque()).append(waiter)
        timer = asyncio.get_running_loop().call_later(timeout, self._time_out, waiter)
        try:
            error = await waiter.reply
        except BaseException:
            if waiter.has_slot:
                self.claim_lost(key)
            waiter.is_over = True
            raise
        finally:
            timer.cancel()
        if error is not None:
            raise error

    def _take(self, key: str) -> None:
        self.taken += 1
        self.claims += 1
        if self.callers is not None:
            self.callers.take(key)

    def _blocked(self, key: str, is_new: bool) -> str | None:
        """The line in which to wait; ``None`` where a slot is free."""
        if self.taken >= self.most:
            return _PROCESS
        callers = self.callers
        return callers.name(key) if callers is not None and callers.wait(key, is_new=is_new) > 0 else None

    def _is_certain(self, line: str, key: str, is_new: bool) -> bool:
        if line == _PROCESS or self.callers is None:
            return self.taken - self.claims >= self.most
        return self.callers.is_certain(key, is_new=is_new)

    def _refusal(self, line: str, key: str, is_new: bool) -> Exception:
        if line == _PROCESS or self.callers is None:
            return Overloaded("Too many requests are being executed: try again later.")
        seconds = self.callers.wait(key, is_new=is_new)
        return TooManyKeys("The caller has sent too much at once: try again later.", seconds)

    def _changed(self, key: str) -> None:
        """Serve who waits longest for the process, then who waits longest as this key's caller."""
        self._serve(_PROCESS)
        if self.callers is not None:
            self._serve(self.callers.name(key))

    def _serve(self, name: str) -> None:
        line = self._lines.get(name)
        while line:
            waiter = line[0]
            if not waiter.is_over:
                blocked = self._blocked(waiter.key, waiter.is_new)
                if blocked is None:
                    self._take(waiter.key)
                    waiter.has_slot = True
                    waiter.end(None)
                elif self._is_certain(blocked, waiter.key, waiter.is_new):
                    waiter.end(self._refusal(blocked, waiter.key, waiter.is_new))
                elif blocked != name:
                    self._lines.setdefault(blocked, deque()).append(waiter)
                else:
                    return
            line.popleft()
        self._lines.pop(name, None)

    def _time_out(self, waiter: "_Waiter") -> None:
        if waiter.is_over:
            return
        line = self._blocked(waiter.key, waiter.is_new)
        if line is None:
            self._take(waiter.key)
            waiter.has_slot = True
            waiter.end(None)
        else:
            waiter.end(self._refusal(line, waiter.key, waiter.is_new))
        self._changed(waiter.key)


class _Waiter:
    """One request that waits for a slot."""

    __slots__ = ("has_slot", "is_new", "is_over", "key", "reply")

    def __init__(self, key: str, is_new: bool) -> None:
        self.key = key
        self.is_new = is_new
        self.has_slot = False
        self.is_over = False
        self.reply: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def end(self, error: Exception | None) -> None:
        """It is decided; the loop that waits may be another one."""
        self.is_over = True
        self.reply.get_loop().call_soon_threadsafe(set_reply, self.reply, error)
