"""`SqlCache`: records in SQLite or PostgreSQL, as rows that the database compares and swaps and the law decides about.

A first request costs one claim and one outcome, a replay one read: from SQLite on the event loop, from PostgreSQL one round trip.
What waits goes together: a process's calls share one commit, or one statement.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

from oncegate.cache import transitions
from oncegate.cache.callbacks import Adopt, CallbackCache, CallbackCalls, Then, start
from oncegate.cache.codec import encode
from oncegate.cache.encryption import OFF_LOOP_BYTES, Encryption, given_encryption, off_loop
from oncegate.cache.errors import CacheError, RecordUnreadable
from oncegate.cache.record import TOKEN_BYTES, Claim, ClaimRequest, Record, body_bytes
from oncegate.cache.sql import reading
from oncegate.cache.sql.calls import (
    BytesDecision,
    CallDecision,
    ClaimDecision,
    OwnerDecision,
    SecretDecision,
    with_line,
)
from oncegate.cache.sql.line import Call, ClaimCall, Line
from oncegate.cache.sql.rows import Rows
from oncegate.cache.store import MOST_PROCESSES, Described, KeptProcess, Page, audit_key, processes_key
from oncegate.cache.transitions import Resolution, ResolveRequest

Result = TypeVar("Result")


class SqlCache(CallbackCache, by_callback=True):
    """A `Cache` in a database. Build it with `from_url`; it connects when it is first used, and again whenever it has to.

    ``timeout`` (s) bounds each call. Several event loops may use one cache.
    """

    __slots__ = ("_closed", "_lines", "_open_rows", "_timeout", "encryption", "system")

    def __init__(
        self,
        open_rows: Callable[[asyncio.AbstractEventLoop], Rows],
        *,
        timeout: float,
        encryption: Encryption | None = None,
        closed: Callable[[], None] = lambda: None,
        system: str = "",
    ) -> None:
        self.system = system
        self._open_rows = open_rows
        self._timeout = timeout
        self.encryption = encryption
        self._closed = closed
        self._lines: dict[asyncio.AbstractEventLoop, Line] = {}

    @classmethod
    def from_url(cls, url: str, *, timeout: float = 0.5, encryption_keys: Sequence[str] = ()) -> "SqlCache":
        """A cache at ``sqlite:///FILE`` or ``postgresql://USER@HOST/DATABASE``; see docs/databases.md for their options.

        ``encryption_keys`` as `RedisCache.from_url` has them. Raises ``ValueError`` for a URL or a key that can't be used,
        ``ImportError`` without asyncpg. Does not connect: `check` does.
        """
        encryption = given_encryption(encryption_keys)
        if url.partition(":")[0].lower() == "sqlite":
            from oncegate.cache.sql.sqlite.clock import SteadyClock
            from oncegate.cache.sql.sqlite.file import SqliteFile
            from oncegate.cache.sql.sqlite.rows import SqliteRows
            from oncegate.cache.sql.sqlite.schema import SqliteAddress

            file = SqliteFile(SqliteAddress(url), timeout, SteadyClock())
            return cls(
                lambda loop: SqliteRows(file, loop, timeout),
                timeout=timeout,
                encryption=encryption,
                closed=file.close,
                system="sqlite",
            )
        from oncegate.cache.sql.postgresql.address import PostgresAddress
        from oncegate.cache.sql.postgresql.rows import PostgresRows

        address = PostgresAddress(url)
        return cls(
            lambda loop: PostgresRows(address, loop, timeout),
            timeout=timeout,
            encryption=encryption,
            system="postgresql",
        )

    @property
    def timeout(self) -> float:
        """Seconds that a call takes at most."""
        return self._timeout

    async def claim(self, key: str, request: ClaimRequest, *, adopt: Adopt | None = None) -> Claim:
        """See `Cache.claim`. A fresh token for each call: one that was given up on is withdrawn by its token."""
        reply: _Reply[Claim] = _Reply()
        try:
            return await self._answer(partial(self._claim_call, key, request, adopt), reply)
        except asyncio.CancelledError:
            won = getattr(reply, "answer", None)
            if isinstance(won, Claim) and won.won:  # cancelled between the answer and its taking
                self._give_back(key, won, adopt)
            raise

    def _give_back(self, key: str, won: Claim, adopt: Adopt | None) -> None:
        if adopt is not None:
            adopt(won)
            return
        token = won.record.token
        decision = OwnerDecision(key, partial(transitions.release, token=token), self.encryption, token)
        self._line(asyncio.get_running_loop()).start(Call(decision, lambda _: None))

    def start_claim(
        self,
        key: str,
        request: ClaimRequest,
        loop: asyncio.AbstractEventLoop,
        adopt: Adopt | None,
        then: Then[Claim],
    ) -> asyncio.Task[None] | None:
        """The same by callback."""
        self._line(loop).start(self._claim_call(key, request, adopt, then))
        return None

    def _callback_calls(self) -> CallbackCalls:
        return self

    def _claim_call(self, key: str, request: ClaimRequest, adopt: Adopt | None, then: Then[Claim]) -> ClaimCall:
        decision = ClaimDecision(key, lambda held: transitions.claim(held, request), self.encryption)
        decision.traced = request.trace.span != ""
        return ClaimCall(decision, request, adopt, then)

    async def renew(self, key: str, *, token: bytes, lease_ms: int) -> bool:
        """See `Cache.renew`."""
        transitions.check_duration("lease_ms", lease_ms)
        law = partial(transitions.renew, token=token, lease_ms=lease_ms)
        return await self._decide(OwnerDecision(key, law, self.encryption, token))

    async def complete(self, key: str, outcome: Record, *, ttl_ms: int) -> bool:
        """See `Cache.complete`."""
        transitions.check_outcome(outcome.state)
        size = 0 if self.encryption is None else body_bytes(outcome)
        data = None
        if size > OFF_LOOP_BYTES:
            data = await off_loop(size, encode, outcome, self.encryption, key.encode())
        return await self._decide(self._outcome(key, outcome, ttl_ms, data))

    def start_complete(
        self, key: str, outcome: Record, loop: asyncio.AbstractEventLoop, ttl_ms: int, then: Then[bool]
    ) -> None:
        """The same by callback. It takes a task where much is to be encrypted."""
        if self.encryption is not None and body_bytes(outcome) > OFF_LOOP_BYTES:
            start(loop, self.complete(key, outcome, ttl_ms=ttl_ms), then)
        else:
            self._line(loop).start(Call(self._outcome(key, outcome, ttl_ms, None), then))

    def _outcome(self, key: str, outcome: Record, ttl_ms: int, data: bytes | None) -> OwnerDecision:
        law = partial(transitions.complete, outcome=outcome, ttl_ms=ttl_ms)
        return OwnerDecision(key, law, self.encryption, outcome.token, outcome, data)

    async def release(self, key: str, *, token: bytes) -> bool:
        """See `Cache.release`."""
        if len(token) != TOKEN_BYTES:
            raise ValueError("a token has 16 bytes")
        law = partial(transitions.release, token=token)
        return await self._decide(OwnerDecision(key, law, self.encryption, token))

    async def get(self, key: str) -> Claim | None:
        """See `Cache.get`."""
        return await reading.read(self._rows(), key, self.encryption)

    async def peek(self, key: str) -> Claim | None:
        """See `Cache.peek`."""
        return await reading.read(self._rows(), key, self.encryption, reading.PEEK_BYTES)

    async def peek_all(self, keys: Sequence[str]) -> list[Claim | RecordUnreadable | None]:
        """See `PeeksAtMany`."""
        return await reading.peek_all(self._rows(), keys, self.encryption)

    async def resolve(self, key: str, request: ResolveRequest) -> Resolution:
        """See `Cache.resolve`."""
        transitions.check_resolution(request.state, request.ttl_ms, request.response)
        law = partial(transitions.resolve, request=request)
        return await self._decide(CallDecision(key, law, self.encryption), repeats=False)

    async def purge(self, key: str, seen: Record, *, force: bool = False) -> Resolution:
        """Remove a record, unless it is another attempt's by now than ``seen``, or in flight and not by ``force``."""
        law = partial(transitions.purge, seen=seen, force=force)
        return await self._decide(CallDecision(key, law, self.encryption), repeats=False)

    async def check_secret(self, namespace: str, values: Sequence[str], *, writes: bool) -> bool:
        """See `KeepsSecretCheck`. It is kept for good, beside the records: no scan of the namespace finds it."""
        return await self._decide(SecretDecision(namespace, values, writes=writes))

    async def keep_audit_line(self, namespace: str, line: bytes, *, most: int, ttl_ms: int) -> None:
        """See `KeepsAudit`. All lines are one row."""
        change = partial(with_line, line, most)
        await self._decide(BytesDecision(audit_key(namespace), change, ttl_ms=ttl_ms), repeats=False)

    async def audit_lines(self, namespace: str) -> list[bytes]:
        """See `KeepsAudit`."""
        read = await self._rows().read(audit_key(namespace))
        return [] if read is None else read[0].data.split(b"\n")

    async def keep_process(self, namespace: str, name: str, entry: bytes, *, ttl_ms: int) -> None:
        """See `KeepsProcesses`. Each has a row, and is read before it is written."""
        await self._decide(BytesDecision(processes_key(namespace) + name, lambda _: entry, ttl_ms=ttl_ms))

    async def forget_process(self, namespace: str, name: str) -> None:
        """See `KeepsProcesses`."""
        await self._decide(BytesDecision(processes_key(namespace) + name, lambda _: b"", ttl_ms=0))

    async def processes(self, namespace: str) -> list[KeptProcess]:
        """See `KeepsProcesses`."""
        rows = self._rows()
        keys, _ = await rows.scan("", processes_key(namespace), MOST_PROCESSES)
        held = await rows.read_all(keys, 0) if keys else {}
        return [KeptProcess(row.data, row.remaining_ms) for row, _ in held.values()]

    async def scan(self, namespace: str, key_digest: str | None = None, *, cursor: str = "", limit: int = 100) -> Page:
        """See `Cache.scan`. In the order of the keys."""
        prefix = f"{namespace}:{key_digest}:" if key_digest is not None else f"{namespace}:"
        if cursor and not cursor.startswith(prefix):
            raise ValueError("this is no cursor of ours")
        keys, last = await self._rows().scan(cursor, prefix, max(1, limit))
        return Page(tuple(keys), last)

    async def check(self) -> list[str]:
        """See `Cache.check`."""
        return await self._rows().check()

    async def describe(self) -> Described:
        """See `Describes`."""
        rows = self._rows()
        advice = await rows.check()
        return Described(self.system, [await rows.describe()], advice)

    async def close(self) -> None:
        """See `Cache.close`. Claims that wait to be withdrawn get one more time-out; a call after this connects again."""
        here = self._lines.pop(asyncio.get_running_loop(), None)
        if here is not None:
            with suppress(CacheError, OSError):  # nothing can be done about it here
                await here.close()
        self._drop_closed()
        if not self._lines:
            await asyncio.to_thread(self._closed)  # it may wait for a commit

    def _line(self, loop: asyncio.AbstractEventLoop) -> Line:
        line = self._lines.get(loop)
        if line is None:
            self._drop_closed()
            line = self._lines[loop] = Line(self._open_rows(loop), loop, self._timeout)
        return line

    def _rows(self) -> Rows:
        return self._line(asyncio.get_running_loop()).rows

    def _drop_closed(self) -> None:
        for loop in [loop for loop in list(self._lines) if loop.is_closed()]:
            self._lines.pop(loop, None)

    async def _decide(self, decision: CallDecision[Result], *, repeats: bool = True) -> Result:
        return await self._answer(lambda then: Call(decision, then, repeats=repeats))

    async def _answer(self, call: Callable[[Then[Result]], Call[Any]], reply: "_Reply[Result] | None" = None) -> Result:
        loop = asyncio.get_running_loop()
        reply = _Reply() if reply is None else reply
        made = call(reply)
        self._line(loop).start(made)
        if not made.is_over:
            reply.future = loop.create_future()
            try:
                await reply.future
            except BaseException:
                made.leave()
                raise
        answer = reply.answer
        if isinstance(answer, Exception):
            raise answer
        return answer


class _Reply(Generic[Result]):
    """Takes a call's answer. Many are there at once, and want no future."""

    __slots__ = ("answer", "future")

    answer: Result | Exception

    def __init__(self) -> None:
        self.future: asyncio.Future[None] | None = None

    def __call__(self, answer: Result | Exception) -> None:
        self.answer = answer
        if self.future is not None and not self.future.done():
            self.future.set_result(None)
