"""A connection to PostgreSQL, for one event loop: it sends what waits as one statement, then what came meanwhile as the next one.

A connection that breaks is opened again by the next batch. What was on it is `AnswerLost`: whoever has sent it knows what to do.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import Any, Final

from oncegate.cache.backoff import Backoff
from oncegate.cache.errors import CacheError, CacheFull, CacheRefused, CacheUnavailable, CacheUnsupported
from oncegate.cache.sql.postgresql import statements
from oncegate.cache.sql.postgresql.address import PostgresAddress
from oncegate.cache.sql.rows import AnswerLost, Expected, Found, Read, Row, Step, Swap

try:
    import asyncpg
except ImportError as missing:
    raise ImportError("records in PostgreSQL need asyncpg: pip install 'oncegate[postgres]'") from missing

log = logging.getLogger("oncegate.cache")

Look = Callable[[Any], Awaitable[Any]]
"""A call beside the steps: of a connection."""

MOST_WAITING: Final = 10_000
"""Steps that wait for a connection. More of them come only while the server stalls; those callers have left by then."""
_MOST_STEPS: Final = 256
_MOST_BYTES: Final = 4 * 1024 * 1024
"""Of a statement's records: what is larger goes alone."""
_AGAIN: Final = Backoff(0.05, 1.0, least=0.5)
_READ_ONLY: Final = "25006"


class _Job:
    """A step or a look, and whom its reply goes to."""

    __slots__ = ("step", "then")

    def __init__(self, step: "Step | Look", then: Callable[[Any], None]) -> None:
        self.step = step
        self.then = then


class Sender:
    """One connection, and what waits for it."""

    def __init__(self, address: PostgresAddress, loop: asyncio.AbstractEventLoop, timeout: float) -> None:
        self.connection: Any = None
        self._address = address
        self._loop = loop
        self._timeout = timeout
        self._waiting: deque[_Job] = deque()
        self._task: asyncio.Task[None] | None = None
        self._failures = 0
        self._not_before = 0.0
        self._seen = (0, 0.0)

    @property
    def now_ms(self) -> int:
        """The server's clock, as this process knows it; 0: not at all."""
        seen_ms, at = self._seen
        return seen_ms + int((monotonic() - at) * 1000) if seen_ms else 0

    def put(self, step: "Step | Look", then: Callable[[Any], None]) -> None:
        """Carry out ``step``, with all else that waits."""
        if len(self._waiting) >= MOST_WAITING:
            self._loop.call_soon(then, CacheUnavailable("too much waits for PostgreSQL"))
            return
        self._waiting.append(_Job(step, then))
        if self._task is None:
            self._task = self._loop.create_task(self._work())

    async def close(self) -> None:
        """Close the connection."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        connection, self.connection = self.connection, None
        if connection is not None:
            try:
                await connection.close(timeout=self._timeout)
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                connection.terminate()
        for job in self._waiting:
            job.then(CacheUnavailable("the cache is closed"))
        self._waiting.clear()

    async def _work(self) -> None:
        try:
            while self._waiting:
                await self._send(self._batch())
        finally:
            if self._task is asyncio.current_task():
                self._task = None

    def _batch(self) -> list[_Job]:
        """The next batch: steps of one kind, each key once (see `Line`), no more bytes than a server bears; or one look."""
        waiting = self._waiting
        batch = [waiting.popleft()]
        kind, size = _kind(batch[0].step), _size(batch[0].step)
        while kind != _LOOK and waiting and len(batch) < _MOST_STEPS and _kind(waiting[0].step) == kind:
            size += _size(waiting[0].step)
            if size > _MOST_BYTES:
                break
            batch.append(waiting.popleft())
        return batch

    async def _send(self, batch: list[_Job]) -> None:
        replies: Sequence[Any]
        was_sent = False
        timer: asyncio.TimerHandle | None = None
        try:
            connection = await self._connected()
            was_sent = True
            # A statement that nobody answers must not hold up what comes after it.
            timer = self._loop.call_later(2 * self._timeout, connection.terminate)
            replies = await self._carry_out(connection, batch)
        except asyncio.CancelledError:
            for job in batch:
                job.then(AnswerLost("the cache is closed"))
            raise
        except Exception as error:  # noqa: BLE001 - whatever a driver raises: who waits would wait for ever
            failed = self._failed(error, was_sent=was_sent)
            replies = [_unavailable(failed) if _kind(job.step) != _LOOK else failed for job in batch]
        finally:
            if timer is not None:
                timer.cancel()
        for job, reply in zip(batch, replies, strict=True):
            job.then(reply)

    async def _carry_out(self, connection: Any, batch: list[_Job]) -> Sequence[Any]:
        look = batch[0].step
        if not isinstance(look, Swap | Read):  # it goes alone
            return [await look(connection)]
        steps = [job.step for job in batch if isinstance(job.step, Swap | Read)]
        arguments = list(zip(*[_arguments(step) for step in steps], strict=True))
        try:
            found = await self._fetch(connection, STATEMENTS[_kind(look)], *arguments)
        except asyncpg.PostgresError as error:
            if error.sqlstate != _READ_ONLY:
                raise
            # It refuses the whole statement, and has what replays want.
            found = await self._fetch(connection, statements.READ, arguments[0])
            refused = CacheRefused("the database takes no writes: it is a standby, or read-only")
            by_key = {each["key"]: _found(each) for each in found}
            rows = [by_key[step.key] for step in steps]
            return [each if each.row is not None and each.row.remaining_ms > 0 else refused for each in rows]
        by_key = {each["key"]: _found(each) for each in found}
        replies = [by_key[step.key] for step in steps]
        for number, (step, reply) in enumerate(zip(steps, replies, strict=True)):
            if isinstance(step, Swap) and step.expected is Expected.NOTHING and not reply.swapped and reply.row is None:
                # Somebody made it after the statement had begun, or it came too late.
                (again,) = await self._fetch(connection, statements.READ, [step.key])
                replies[number] = _found(again)
        return replies

    async def _fetch(self, connection: Any, statement: str, *arguments: Any) -> list[Any]:
        found: list[Any] = await connection.fetch(statement, *arguments)
        if found:
            self._seen = (found[-1]["now_ms"], monotonic())
        return found

    async def _connected(self) -> Any:
        if self.connection is not None and not self.connection.is_closed():
            return self.connection
        self.connection = None
        if monotonic() < self._not_before:
            raise CacheUnavailable("PostgreSQL can't be reached")
        try:
            connection = await asyncpg.connect(
                self._address.dsn,
                timeout=self._timeout,
                statement_cache_size=100 if self._address.prepares else 0,
                server_settings={"application_name": "oncegate"},
            )
            if self._address.prepares:
                session = statements.SESSION.format(milliseconds=max(1, int(self._timeout * 1000)))
                await connection.execute(session, timeout=self._timeout)
        except Exception:
            self._failures += 1
            self._not_before = monotonic() + _AGAIN.pause(self._failures)
            raise
        self._failures = 0
        self.connection = connection
        return connection

    def _failed(self, error: Exception, *, was_sent: bool) -> CacheError:
        if isinstance(error, CacheError):
            return error
        if isinstance(error, asyncpg.PostgresError):
            return _of_server(error, was_sent=was_sent)
        if isinstance(error, ValueError | TypeError) and not was_sent:
            return CacheUnsupported("the cache's URL is not one that asyncpg takes")
        if (
            isinstance(error, asyncpg.InterfaceError)
            and self.connection is not None
            and not self.connection.is_closed()
        ):
            return CacheRefused(f"asyncpg refused: {type(error).__name__}")
        text = f"PostgreSQL can't be reached ({type(error).__name__})"
        return AnswerLost(text) if was_sent else CacheUnavailable(text)


_CLAIM: Final = 0
_SWAP: Final = 1
_READ: Final = 2
_LOOK: Final = 3
STATEMENTS: Final = {_CLAIM: statements.CLAIM, _SWAP: statements.SWAP, _READ: statements.READ}
"""By the kind of the steps that it carries out."""


def _kind(step: "Step | Look") -> int:
    if isinstance(step, Swap):
        return _CLAIM if step.expected is Expected.NOTHING else _SWAP
    return _READ if isinstance(step, Read) else _LOOK


def _size(step: "Step | Look") -> int:
    return len(step.held) + len(step.data or b"") if isinstance(step, Swap) else 0


def _arguments(step: Step) -> tuple[Any, ...]:
    if isinstance(step, Swap):
        if step.expected is Expected.NOTHING:
            return step.key, step.data, step.ttl_ms, step.until_ms
        return step.key, int(step.expected), step.held, step.ends_ms, step.data, step.ttl_ms, step.until_ms
    return (step.key,)


def _found(each: Any) -> Found:
    now_ms: int = each["now_ms"]
    if each["made"]:
        return Found(True, None, now_ms)
    data = each["data"]
    return Found(False, None if data is None else Row(data, each["ends_ms"], now_ms), now_ms)


_LOST: Final = ("08", "57")
"""Classes of SQLSTATE under which a statement may have been committed: connections, and what an operator ended."""
_WAIT: Final = ("40", "53", "55")
NO_TABLE: Final = "the table oncegate_records is not there: make it with: oncegate records create --cache URL"


def _of_server(error: Any, *, was_sent: bool) -> CacheError:
    state: str = error.sqlstate or ""
    if state == "42P01":
        return CacheUnsupported(NO_TABLE)
    if state == "42501":
        return CacheUnsupported(
            "the database's user may not use oncegate_records: GRANT it SELECT, INSERT, UPDATE, DELETE"
        )
    if state in ("28P01", "28000"):
        return CacheUnsupported("PostgreSQL refuses the user or the password of the cache's URL")
    if state == "3D000":
        return CacheUnsupported("the database of the cache's URL is not there")
    if state in ("26000", "42P05"):
        return CacheRefused("a pooler mixes up prepared statements: add prepare=off to the cache's URL")
    if state == "53100":
        return CacheFull("the disk of the database is full")
    if state[:2] in _LOST or state == "40003":  # statement_completion_unknown
        text = f"PostgreSQL is going away or coming up ({state})"
        return AnswerLost(text) if was_sent else CacheUnavailable(text)
    if state[:2] in _WAIT:
        return CacheUnavailable(f"PostgreSQL can't do it now ({state})")
    return CacheRefused(f"PostgreSQL refused ({state})")


def _unavailable(error: CacheError) -> CacheUnavailable:
    return error if isinstance(error, CacheUnavailable) else CacheRefused(str(error))
