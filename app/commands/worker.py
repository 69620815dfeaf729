"""The worker's loops: they read, process and acknowledge the entries of a command stream, and retry those that are due.

Strategy. A fixed number of runners take entries from one queue. Two loops fill it: one reads new entries, as many as there are
idle runners; one takes over what a dead worker has left. What was put off comes back by a timer once it is due, by its id alone
(the body is read anew). A third loop refreshes the idle time of everything held here, again and again.

An entry is *abandoned* when it was not refreshed for ``idle`` seconds. A live worker refreshes all it holds four times
in that time, so only one that is stopped, cut off from Redis, or dead loses entries. Even then nothing is executed twice at
once: the lease in the command's execution record decides that; this only decides which worker processes the entry. After an
outage of Redis everything has been idle for long: a worker that comes back refreshes first, and takes over only after half
of ``idle``, when the others have refreshed too.

An error from Redis puts the entry off, and processing it again is safe: its record shows whether it was processed.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol, TypeVar

from oncegate.app.commands.acknowledgements import Acknowledgements
from oncegate.app.commands.processing import Disposition
from oncegate.cache.backoff import Backoff
from oncegate.cache.errors import CacheError, CacheRefused, CacheUnavailable, GroupMissing
from oncegate.cache.redis.streams.group import FIRST, Group
from oncegate.cache.redis.streams.stream import Fields

log = logging.getLogger("oncegate.worker")

BLOCK_MS = 500
"""Reading waits so long for new entries, and so it may take as long to notice a stop."""
MOST_AT_ONCE = 16
"""Entries in one answer, whose payloads may be large: it has to come within the time-out of a command."""
MOST_WAITING = 100_000
"""Entries that may wait here to be looked at again, by their ids alone: as many as a stream holds. With more nothing is read."""
FAREWELL_SECONDS = 2.0
SWEEP_SECONDS = 30.0
"""Between two rounds of trimming, and of removing workers that are gone."""

Result = TypeVar("Result")


class Process(Protocol):
    """A function that processes an entry, for the ``tries``-th time."""

    async def __call__(self, entry: bytes, fields: Mapping[bytes, bytes], tries: int) -> Disposition:
        """Raises only a cancellation."""
        ...


class Worker:
    """A worker that gives the entries of ``group`` to ``process``, at most ``concurrency`` at a time.

    ``idle`` (s): see above; ``trim`` removes what no group needs from the stream. `run` until `stop`.
    """

    def __init__(
        self,
        group: Group,
        process: Process,
        *,
        concurrency: int,
        idle: float,
        trim: Callable[[], Awaitable[object]],
    ) -> None:
        self._group = group
        self._process = process
        self._concurrency = concurrency
        self._idle = idle
        self._trim = trim
        self._queue: asyncio.Queue[tuple[bytes, Fields | None] | None] = asyncio.Queue()
        self._waiting: dict[bytes, float] = {}
        """The time at which each entry that was put off is due: then a timer brings it back."""
        self._held: dict[bytes, int] = {}
        """How often each entry that is ours was tried."""
        self.ended_by_handler = False
        """It stops because a handler raised ``KeyboardInterrupt`` or ``SystemExit``."""
        self._running = 0
        self._news = asyncio.Event()
        """A runner became idle, or it is to stop."""
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._stopped_at = 0.0
        self._away = False
        self._may_claim_at = 0.0
        # The last worker to come back must have refreshed before the first one takes over.
        self._reconnect = Backoff(0.1, min(2.0, idle / 8))
        self._refreshing: asyncio.Task[None] | None = None
        self._acknowledgements = Acknowledgements(group, self._held, self._look_again)

    def stop(self) -> None:
        """Read nothing more, and let `run` return when what is executed has ended. A second time: without waiting for it."""
        if self._stopping.is_set():
            self._hurry.set()
        else:
            log.info("stopping: what is executed ends first")
            self._stopped_at = _now()
        self._stopping.set()
        self._wake()

    async def run(self, shutdown_timeout: float) -> int:
        """Work until `stop`. What is still executed ``shutdown_timeout`` seconds after it is left to its lease.

        Returns how many executions were left so.
        """
        self._may_claim_at = _now() + self._idle / 2  # Redis may have come back just now
        if await self._try(self._group.create):
            log.info("the group %s was made: it reads from the first entry on", self._group.name)
        runners = [asyncio.create_task(self._runner()) for _ in range(self._concurrency)]
        keeping = asyncio.create_task(self._keep())
        try:
            await asyncio.gather(self._read(), self._take_over(), self._sweep())
            await _briefly(self._leave_waiting())
            for _ in runners:
                self._queue.put_nowait(None)
            left = await self._wait_for(runners, self._stopped_at + shutdown_timeout)
        finally:
            for task in (*runners, keeping):
                task.cancel()
            await asyncio.gather(*runners, keeping, return_exceptions=True)
        await _briefly(self._acknowledgements.flush())
        await _briefly(self._leave_waiting())
        await _briefly(self._try(self._group.leave))
        return left

    async def _wait_for(self, runners: "list[asyncio.Task[None]]", deadline: float) -> int:
        ends = [asyncio.create_task(self._hurry.wait()), asyncio.create_task(asyncio.wait(runners))]
        await asyncio.wait(ends, timeout=max(0.0, deadline - _now()), return_when=asyncio.FIRST_COMPLETED)
        for each in ends:
            each.cancel()
        left = sum(not runner.done() for runner in runners)
        if left:
            log.warning("%d commands are still being executed: others take them over once their leases lapse", left)
        return left

    # -- the loops ----------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        tries = 0
        while not self._stopping.is_set():
            room = self._room()
            if not room:
                await self._news.wait()
                continue
            try:
                entries = await self._group.read(room, BLOCK_MS)
            except CacheUnavailable as error:
                tries += 1
                await self._recover(error)
                await self._rest(self._reconnect.pause(tries))
                continue
            self._on_answer()
            tries = 0
            for entry, fields in entries:
                self._hold(entry, fields)

    async def _take_over(self) -> None:
        while not self._stopping.is_set():
            cursor: bytes | None = FIRST
            while cursor is not None and not (self._stopping.is_set() or self._away or _now() < self._may_claim_at):
                room = self._room()
                if not room:
                    await self._news.wait()
                    continue
                try:
                    cursor, entries = await self._group.abandoned(round(self._idle * 1000), cursor, room)
                except CacheUnavailable as error:
                    await self._recover(error)
                    break
                for entry, fields in entries:
                    if self._hold(entry, fields):
                        log.info("entry %s: taken over from a worker that has stopped renewing it", entry.decode())
            await self._rest(self._idle / 4)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._idle / 4)
            await self._keep_once()

    async def _keep_once(self) -> None:
        if self._held:
            await self._try(lambda: self._group.keep(list(self._held)))

    async def _sweep(self) -> None:
        while not self._stopping.is_set():
            await self._rest(SWEEP_SECONDS * random.uniform(0.5, 1.0))
            if not self._stopping.is_set():
                await self._try(self._trim)
                while await self._try(self._group.trim_letters) and not self._stopping.is_set():
                    pass  # a bounded number at a time
                await self._try(self._group.strike_off)

    # -- one entry ----------------------------------------------------------------------------------------------------

    async def _runner(self) -> None:
        while (item := await self._queue.get()) is not None:
            self._running += 1
            try:
                await self._handle(*item)
            except asyncio.CancelledError:
                raise
            except BaseException:  # a fault of ours with one entry must not end the others
                log.exception("entry %s: could not be processed; it will be tried again", item[0].decode())
                self._put_off(item[0], self._idle)
            finally:
                self._running -= 1
                self._wake()

    async def _handle(self, entry: bytes, fields: Fields | None) -> None:
        tries = self._held[entry] = self._held.get(entry, 0) + 1
        try:
            if fields is None:
                fields = await self._group.take(entry)
                self._on_answer()
            if fields is None:  # another worker was done with it meanwhile
                self._held.pop(entry, None)
                return
            disposition = await self._process(entry, fields, tries)
            if disposition.ends and not self._stopping.is_set():
                self.ended_by_handler = True
                self.stop()
            if disposition.again is not None:
                self._put_off(entry, disposition.again)
                return
            if disposition.death is None:
                self._acknowledgements.add(entry)
                return
            await self._group.give_up(entry, disposition.death, disposition.copy_of, disposition.since_ms)
            self._held.pop(entry, None)
        except CacheUnavailable as error:
            await self._look_again((entry,), error)

    async def _look_again(self, entries: Sequence[bytes], error: Exception) -> None:
        """The last step with ``entries`` was not done: they are looked at again, when Redis may let us."""
        if isinstance(error, CacheUnavailable) and not isinstance(error, CacheRefused):
            await self._recover(error)
            for entry in entries:
                self._put_off(entry, self._reconnect.pause(self._held[entry]))
            return
        for entry in entries:
            # Its outcome is recorded, so all that is left to do is this, whenever Redis lets us.
            log.warning("entry %s: can't be acknowledged, and is looked at again: %s", entry.decode(), error)
            self._put_off(entry, self._idle)

    def _hold(self, entry: bytes, fields: Fields) -> bool:
        """Queue an entry that this worker was given. False: it held it already."""
        if entry in self._held:
            return False
        self._held[entry] = 0
        if self._stopping.is_set():  # it came with the last read, or take-over: left to others like all that waits
            self._put_off(entry, 0.0)
        else:
            self._queue.put_nowait((entry, fields))
        return True

    def _put_off(self, entry: bytes, seconds: float) -> None:
        self._waiting[entry] = _now() + seconds
        asyncio.get_running_loop().call_later(seconds, self._bring_back, entry)

    def _bring_back(self, entry: bytes) -> None:
        if not self._stopping.is_set():  # else it is left to others
            del self._waiting[entry]
            self._queue.put_nowait((entry, None))

    def _room(self) -> int:
        """How many more entries may come at once."""
        if len(self._waiting) >= MOST_WAITING:
            return 0
        return max(0, min(MOST_AT_ONCE, self._concurrency - self._running - self._queue.qsize()))

    async def _leave_waiting(self) -> None:
        """Give up what is not being executed, so that others may take it as soon as it is due."""
        waits = {entry: max(0, round((due - _now()) * 1000)) for entry, due in self._waiting.items()}
        self._waiting.clear()
        while not self._queue.empty():
            item = self._queue.get_nowait()
            if item is not None:
                waits[item[0]] = 0
        for entry in waits:
            self._held.pop(entry, None)
        if waits:
            await self._try(lambda: self._group.leave_to_others(waits, round(self._idle * 1000)))

    # -- Redis comes and goes -----------------------------------------------------------------------------------------

    async def _try(self, step: Callable[[], Awaitable[Result]]) -> Result | None:
        """Do a step that is repeated later anyway, if it fails now."""
        try:
            answer = await step()
        except CacheError as error:
            await self._recover(error)
            return None
        except Exception:  # what is kept for others to see that we live must go on
            log.exception("a step that is repeated could not be done")
            return None
        self._on_answer()
        return answer

    async def _recover(self, error: CacheError) -> None:
        """Redis refused something: make the group anew if it is gone, else log an outage, once."""
        if isinstance(error, GroupMissing):
            try:
                if await self._group.create():
                    log.warning(
                        "the group %s was not there, and was made: it reads from the first entry on", self._group.name
                    )
                self._on_answer()
            except CacheUnavailable as another:
                error = another
            else:
                return
        if not self._away:
            self._away = True
            log.warning("the stream can't be read; it is tried again and again: %s", error)

    def _on_answer(self) -> None:
        if self._away:
            self._away = False
            self._may_claim_at = _now() + self._idle / 2
            log.info("the stream can be read again")
            self._refreshing = asyncio.create_task(self._keep_once())

    # -- waiting ------------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Wake all waiters; each checks its own condition."""
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def _rest(self, seconds: float) -> None:
        """Wait, but not for longer than until `stop`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()


async def _briefly(work: Awaitable[object]) -> None:
    """Do a step of an orderly stop within a time limit: without it, others only wait longer."""
    with suppress(TimeoutError):
        async with asyncio.timeout(FAREWELL_SECONDS):
            await work


def _now() -> float:
    return asyncio.get_running_loop().time()
