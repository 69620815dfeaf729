"""`Inbox`: marks each message in the transaction of its effect, so that a second delivery finds it.

Strategy. The marker comes first, and by one statement: who writes it has the message, and a concurrent delivery waits until
that transaction has ended (oncegate.sql.statements). A look before, and a marker after the effect, would run both, and fail one
of them at its commit.

All of it is written once, for SQLAlchemy's synchronous sessions and connections; for asynchronous ones it runs in their
``run_sync``.
"""

import asyncio
import functools
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any, Concatenate, Literal, NoReturn, ParamSpec, TypeVar, overload

from sqlalchemy import Connection, Engine, MetaData, Table
from sqlalchemy.exc import SQLAlchemyError, UnboundExecutionError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.util import await_only

from oncegate.middleware.consumers.delivery import (
    CONSUMER,
    Delivery,
    Rejected,
    SubscriptionSettings,
    command_key,
    delivery_fingerprint,
)
from oncegate.middleware.rules.errors import KeyInvalid
from oncegate.middleware.rules.key import record_id
from oncegate.middleware.rules.key_text import KeyText
from oncegate.sql.cleanup import BATCH_SIZE, Retention, keep_forgetting
from oncegate.sql.entry import AsyncEntry, Entry, Marking, read_result
from oncegate.sql.errors import Forgotten, InboxMisused, KeyReused, meaning
from oncegate.sql.guard import check_commits_nothing, marked
from oncegate.sql.statements import DIALECTS, Message, Statements, statements
from oncegate.sql.table import inbox_table
from oncegate.sql.transaction import execute, without_session

log = logging.getLogger("oncegate.inbox")

P = ParamSpec("P")
Payload = TypeVar("Payload")
AsyncOf = TypeVar("AsyncOf", bound=AsyncSession)
SyncOf = TypeVar("SyncOf", bound=Session)

_KEY_NEEDED = SubscriptionSettings(on_missing_key="reject")


class Inbox:
    """The inbox of ``consumer``, in the table ``oncegate_inbox`` of the database that its effects are in.

    ``consumer`` is a name as a `Subscription` has one, the same over all processes that share the work and for as long as
    markers are kept. With ``aliases``, its former names, a message is marked under each of them, so that old and new processes
    may run side by side. ``schema`` is where the table is, if it isn't where the connection looks by itself. A result of more
    than ``max_result`` bytes is not kept. Another payload under a key is a `KeyReused`, with ``on_mismatch = "warn"`` a duplicate
    that is logged. A session that uses a second database in its transaction is refused, or with ``strict=False`` warned of.

    `maintained` deletes markers that are older than ``retention`` (s), which is no less than ``redelivery_horizon``: for as long
    a broker may deliver a message again. One that was sent before what was deleted, and has no marker, is `Forgotten`,
    with ``on_forgotten = "run"`` executed.

    On PostgreSQL a transaction with a marker waits ``wait_timeout`` seconds at most for a lock, that of a concurrent delivery's
    marker first of all, and the server ends it when it stands idle for ``idle_timeout`` seconds; a session's own limits stay.
    """

    def __init__(
        self,
        consumer: str,
        *,
        aliases: Sequence[str] = (),
        schema: str | None = None,
        max_result: int = 65536,
        on_mismatch: Literal["reject", "warn"] = "reject",
        on_forgotten: Literal["reject", "run"] = "reject",
        retention: float = 604800.0,
        redelivery_horizon: float = 86400.0,
        strict: bool = True,
        wait_timeout: float = 5.0,
        idle_timeout: float = 60.0,
    ) -> None:
        if isinstance(aliases, str):
            raise TypeError("aliases is a str: give a list of names")
        for name in (consumer, *aliases):
            if not CONSUMER.fullmatch(name):
                raise ValueError(f"a consumer's name has 1 to 64 letters, digits, '.', '_' and '-', not {name!r}")
        if consumer in aliases or len(set(aliases)) != len(aliases):
            raise ValueError("aliases are former names of the consumer, each given once")
        if on_mismatch not in ("reject", "warn"):
            raise ValueError(f"on_mismatch is 'reject' or 'warn', not {on_mismatch!r}")
        if on_forgotten not in ("reject", "run"):
            raise ValueError(f"on_forgotten is 'reject' or 'run', not {on_forgotten!r}")
        if not (wait_timeout > 0 and idle_timeout > 0 and max_result >= 0):
            raise ValueError("wait_timeout and idle_timeout are above 0 seconds, max_result is no less than 0 bytes")
        self.consumer = consumer
        self.aliases = tuple(aliases)
        self.schema = schema
        self.max_result = max_result
        self._warns = on_mismatch == "warn"
        self._strict = strict
        self._runs_forgotten = on_forgotten == "run"
        self._retention = Retention(
            consumers=(consumer, *aliases), seconds=retention, redelivery_horizon=redelivery_horizon
        )
        self._table = inbox_table(MetaData(), schema)
        self._statements = {
            dialect: statements(
                dialect,
                self._table,
                (consumer, *aliases),
                wait_timeout=wait_timeout,
                idle_timeout=idle_timeout,
            )
            for dialect in DIALECTS
        }

    def table(self, metadata: MetaData) -> Table:
        """The inbox's table as a part of ``metadata``, for your own migrations; one for all inboxes of a schema."""
        return inbox_table(metadata, self.schema)

    @overload
    def first(
        self,
        session: AsyncSession | AsyncConnection,
        key: KeyText,
        *,
        caller: KeyText = "",
        record: str = "",
        payload: Any = None,
        sent_at: datetime | None = None,
    ) -> Marking: ...

    @overload
    def first(
        self,
        session: Session | Connection,
        key: KeyText,
        *,
        caller: KeyText = "",
        record: str = "",
        payload: Any = None,
        sent_at: datetime | None = None,
    ) -> Entry: ...

    def first(
        self,
        session: AsyncSession | AsyncConnection | Session | Connection,
        key: KeyText,
        *,
        caller: KeyText = "",
        record: str = "",
        payload: Any = None,
        sent_at: datetime | None = None,
    ) -> Marking | Entry:
        """Mark a message in the session's transaction; true where this delivery is the first. Awaited, where the session is.

        A concurrent delivery of the message waits here until this transaction has ended. ``key`` and ``caller`` name the message
        as in a `Delivery`; ``record`` does so instead, where the message brings a record's id of the gateway's. With a
        ``payload``, another one under the same key raises `KeyReused`. With ``sent_at``, when the message was sent (with its time
        zone), one that is older than what the inbox has forgotten, and has no marker, raises `Forgotten`.

        Raises `KeyInvalid` for an empty key, `InboxBusy` where another transaction was in the way, `InboxUnavailable`
        without the database, `InboxMisused` where a marker would not hold, ``TypeError`` for another kind of session.
        """
        message = _identified(Delivery(key, payload, record=record, caller=caller, sent_at=sent_at))
        if isinstance(session, AsyncSession | AsyncConnection):
            return Marking(self._first_async(session, message))
        if not isinstance(session, Session | Connection):
            raise TypeError(
                f"the session is a {type(session).__name__}: give a Session, AsyncSession, Connection or AsyncConnection"
            )
        return self.mark(session, message)

    async def _first_async(self, session: AsyncSession | AsyncConnection, message: Message) -> AsyncEntry:
        if isinstance(session, AsyncSession):
            entry = await session.run_sync(self.mark, message)
        else:
            entry = await session.run_sync(self.mark, message)
        return AsyncEntry(entry, session)

    @overload
    def transaction(
        self, sessions: async_sessionmaker[AsyncOf]
    ) -> Callable[
        [Callable[Concatenate[Payload, AsyncOf, P], Coroutine[Any, Any, Any]]],
        Callable[Concatenate[Payload, P], Coroutine[Any, Any, Any]],
    ]: ...

    @overload
    def transaction(
        self, sessions: sessionmaker[SyncOf]
    ) -> Callable[[Callable[Concatenate[Payload, SyncOf, P], Any]], Callable[Concatenate[Payload, P], Any]]: ...

    def transaction(self, sessions: async_sessionmaker[Any] | sessionmaker[Any]) -> Callable[[Any], Any]:
        """Decorates a consumer's handler of a payload and a session: begin, mark, call, keep its result, commit.

        What it makes is a handler for a worker or for `Subscription.execute`, whose delivery it marks. A duplicate returns the
        kept result. The handler doesn't commit: it returns, or raises to roll back.

        Besides what `first` raises: `CommitUnknown` where the connection broke during COMMIT, `InboxBusy` and `InboxUnavailable`
        for the database's errors in the handler too.
        """
        of_asyncio = isinstance(sessions, async_sessionmaker)
        if not of_asyncio and not isinstance(sessions, sessionmaker):
            raise TypeError(f"sessions is a {type(sessions).__name__}: give a sessionmaker or an async_sessionmaker")

        def decorate(handler: Callable[..., Any]) -> Callable[..., Any]:
            if inspect.iscoroutinefunction(handler) is not of_asyncio:
                raise TypeError("an async_sessionmaker is for a coroutine function, a sessionmaker for a plain one")

            async def awaited(payload: Any, /, *args: Any, **kwargs: Any) -> Any:
                async with sessions() as session:

                    def call() -> Any:
                        return await_only(handler(payload, session, *args, **kwargs))

                    return await session.run_sync(execute, self.mark, call)

            def called(payload: Any, /, *args: Any, **kwargs: Any) -> Any:
                with sessions() as session:
                    return execute(session, self.mark, functools.partial(handler, payload, session, *args, **kwargs))

            shown = functools.wraps(handler)(awaited if of_asyncio else called)
            without_session(handler, shown)
            if isinstance(engine := sessions.kw.get("bind"), AsyncEngine | Engine):
                vars(shown)["maintained"] = functools.partial(self.maintained, engine)  # for a worker
            return shown

        return decorate

    @asynccontextmanager
    async def maintained(
        self, engine: AsyncEngine | Engine, *, every: float = 3600.0, batch_size: int = BATCH_SIZE
    ) -> AsyncIterator[None]:
        """While it is entered, what is older than ``retention`` is forgotten every so many seconds, ``batch_size`` at a time.

        In transactions of its own. The engine's role needs DELETE besides what consumers need. Any number of processes may do
        it. What fails is logged, and done the next time.
        """
        retention = replace(self._retention, batch_size=batch_size)
        task = asyncio.create_task(keep_forgetting(engine, self._table, retention, every))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def mark(self, session: Session | Connection, message: Message) -> Entry:
        """As `first`, for a message whose record's id is known."""
        if self._runs_forgotten:
            message = replace(message, sent_at=None)
        try:
            connection = session if isinstance(session, Connection) else session.connection()
            known = self._known(connection)
            if isinstance(session, Session):
                marked(session, strict=self._strict)
            written = known.mark(connection, [message])[0]
            first = len(written) == len(known.names)
            result = None if first else self._earlier(connection, known, message, written)
        except (SQLAlchemyError, OSError) as error:
            self._raise(error)

        def store(kept: str) -> None:
            connection.execute(known.keep, {"_message": message.record, "_result": kept})

        return Entry(message.record, first=first, result=result, store=store, max_result=self.max_result)

    def _raise(self, error: SQLAlchemyError | OSError) -> NoReturn:
        if isinstance(error, UnboundExecutionError):
            raise InboxMisused(
                "the session has no database of its own: give it one (bind=), or use a connection"
            ) from None
        if (found := meaning(error, self._table.fullname)) is error:
            raise error
        raise found from error

    def _known(self, connection: Connection) -> Statements:
        known = self._statements.get(connection.dialect.name)
        if known is None:
            raise InboxMisused(f"the database is {connection.dialect.name}: an inbox needs PostgreSQL or SQLite")
        check_commits_nothing(connection)
        return known

    def _earlier(self, connection: Connection, known: Statements, message: Message, written: Collection[str]) -> Any:
        """The result that the first delivery has kept. Raises `KeyReused`, and `Forgotten` where there was none."""
        rows = connection.execute(known.read, {"_message": message.record}).all()
        earlier = [row for row in rows if row.consumer not in written]
        if not earlier and message.sent_at is not None:
            raise Forgotten(
                f"record {message.record}: sent before what the inbox has forgotten, and it may have been processed"
            )
        for row in earlier:
            if None not in (message.fingerprint, row.fingerprint) and row.fingerprint != message.fingerprint:
                if not self._warns:
                    raise KeyReused(f"record {message.record}: the key was used for another payload")
                log.warning("record %s: the key was used for another payload: taken for a duplicate", message.record)
                break
        return next((read_result(row.result) for row in earlier if row.result is not None), None)


def _identified(delivery: Delivery) -> Message:
    """The message with the record's id, and with the payload's fingerprint, as the hook makes them. Raises `KeyInvalid`."""
    try:
        look_up_key = command_key("inbox", delivery, _KEY_NEEDED)
        fingerprint = None if delivery.payload is None else delivery_fingerprint(delivery)
    except Rejected as error:
        raise KeyInvalid(str(error)) from None
    return Message(record_id(look_up_key or ""), fingerprint, delivery.sent_at)
