"""`Inbox`: marks each message in the transaction of its effect, so that a second delivery finds it.

Strategy. The marker comes first, and by one statement: who writes it has the message, and a concurrent delivery waits until
that transaction has ended (oncegate.sql.marking.statements). A look before, and a marker after the effect, would run both, and
fail one of them at its commit.

All of it is written once, for SQLAlchemy's synchronous sessions and connections; for asynchronous ones it runs in their
``run_sync``.
"""

import functools
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, Unpack, get_args, overload

from sqlalchemy import Connection, Engine, MetaData, Table
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from oncegate.middleware.consumers.sql_interface import (
    Delivery,
    Executed,
    KeyText,
    OnMismatch,
    Secrets,
    Watch,
    check_names,
    check_watch,
    given_digests,
    given_seconds,
    set_inbox,
)
from oncegate.sql.database.errors import InboxMisused
from oncegate.sql.database.sessions import AnyAsync, AnySync, check_session, in_session
from oncegate.sql.database.terms import limits_of, lock_shared
from oncegate.sql.handlers.decorated import check_maker, decorated
from oncegate.sql.handlers.handler import execute_awaited
from oncegate.sql.handlers.transaction import is_result
from oncegate.sql.inbox.arguments import Named, NamedEach, check_choice, check_numbers, identified, identified_each
from oncegate.sql.inbox.cleanup import BATCH_SIZE, Retention
from oncegate.sql.inbox.maintenance import InboxMaintenance
from oncegate.sql.inbox.reset import ConsumerReset
from oncegate.sql.inbox.stats import InboxStats
from oncegate.sql.marking.entry import AsyncEntry, Entry, Marking
from oncegate.sql.marking.marker_writer import MarkerWriter
from oncegate.sql.marking.sequence_writer import SequenceWriter
from oncegate.sql.marking.statements import Message
from oncegate.sql.marking.table import inbox_table
from oncegate.sql.marking.writer import Writer
from oncegate.sql.order.guard import Order
from oncegate.sql.order.table import order_table

OnForgotten = Literal["reject", "run"]
P = ParamSpec("P")
Payload = TypeVar("Payload")
AsyncOf = TypeVar("AsyncOf", bound=AsyncSession)
SyncOf = TypeVar("SyncOf", bound=Session)


class Inbox:
    """The inbox of ``consumer``, in the table ``oncegate_inbox`` of the database that its effects are in.

    - ``consumer``: a name as a `Subscription` has one, the same in all processes that share the work, for as long as markers
      are kept.
    - ``aliases``: its former names. A message is marked under each, so that old and new processes may run side by side.
    - ``secret``: the `Subscription`'s, 32 bytes or more. While one replaces the other, with a list of two, a message is marked
      by each.
    - ``schema``: where the table is, if the connection doesn't look there by itself.
    - ``max_result``: bytes of a result; a larger one is not kept.
    - ``on_mismatch``: another payload under a used key raises `KeyReused`; with ``"warn"`` it is a duplicate, and logged.
    - ``retention``: seconds that a marker is kept at least; `maintained` deletes older ones.
    - ``redelivery_horizon``: seconds in which the broker may deliver a message again; no more than ``retention``.
    - ``on_forgotten``: a message without a marker that was sent before what was deleted raises `Forgotten`; with ``"run"`` it
      is executed.
    - ``strict``: a session that uses a second database in its transaction is refused; with ``False`` a warning is logged.
    - ``wait_timeout``: seconds that a transaction with a marker waits for a lock on PostgreSQL, as for a concurrent delivery's
      marker.
    - ``idle_timeout``: seconds after which PostgreSQL ends such a transaction that stands idle. A session's own limits stay,
      both times.
    - ``watch``: notified of each decision, in the thread of the transaction.
    - ``order``: ``"latest"`` skips what a later number has overwritten; ``"contiguous"`` applies each number once, in their
      order. A delivery then brings its aggregate's id and its number there, and one row per aggregate stands in the place of
      markers.
    - ``starts_at``: the first number of an aggregate that is ``"contiguous"``.
    - ``max_parked``: messages of the consumer that wait in the database, under `transaction`, for the number before theirs.
    - ``max_attempts``: how often a parked message is tried when its turn has come.
    """

    def __init__(
        self,
        consumer: str,
        *,
        aliases: Sequence[str] = (),
        secret: Secrets = None,
        schema: str | None = None,
        max_result: int = 65536,
        on_mismatch: OnMismatch = "reject",
        on_forgotten: OnForgotten = "reject",
        retention: float = 604800.0,
        redelivery_horizon: float = 86400.0,
        strict: bool = True,
        wait_timeout: float = 5.0,
        idle_timeout: float = 60.0,
        watch: Watch | None = None,
        order: Order = "none",
        starts_at: int = 1,
        max_parked: int = 10_000,
        max_attempts: int = 5,
    ) -> None:
        check_watch(watch)
        check_names(consumer, aliases)
        check_choice("order", order, *get_args(Order))
        check_choice("on_mismatch", on_mismatch, *get_args(OnMismatch))
        check_choice("on_forgotten", on_forgotten, *get_args(OnForgotten))
        check_numbers(starts_at, max_parked, max_attempts)
        wait_timeout, idle_timeout = given_seconds(wait_timeout=wait_timeout, idle_timeout=idle_timeout)
        retention, redelivery_horizon = given_seconds(retention=retention, redelivery_horizon=redelivery_horizon)
        if not (wait_timeout > 0 and idle_timeout > 0 and max_result >= 0):
            raise ValueError("wait_timeout and idle_timeout are above 0 seconds, max_result is no less than 0 bytes")
        self.consumer = consumer
        self.aliases = tuple(aliases)
        self.digests = given_digests(secret)
        self.schema = schema
        self.max_result = max_result
        self.ordered = order != "none"
        self.contiguous = order == "contiguous"
        self.max_attempts = max_attempts
        self.unmarked = 0
        """How many messages without a key this process has executed without a marker."""
        names = (consumer, *aliases)
        kept = Retention(names, retention, redelivery_horizon)
        self._table = inbox_table(MetaData(), schema)
        limits = f"{limits_of(wait_timeout, idle_timeout)} AND {lock_shared(names)}"
        options: dict[str, Any] = {
            "max_result": max_result, "warns": on_mismatch == "warn", "strict": strict, "watch": watch,
        }  # fmt: skip
        self._writer: Writer
        self._sequences: SequenceWriter | None = None
        if order == "none":
            self._writer = MarkerWriter(self._table, names, limits, runs_forgotten=on_forgotten == "run", **options)
        else:
            table = order_table(MetaData(), schema)
            self._writer = self._sequences = SequenceWriter(
                table, names, limits, order=order, starts_at=starts_at, max_parked=max_parked, **options
            )
        self._reset = ConsumerReset(names, wait_timeout, self._writer, self._table, self._sequences, starts_at)
        self._maintenance = InboxMaintenance(self._table, kept, self._writer, self._sequences)

    def table(self, metadata: MetaData) -> Table:
        """The inbox's table as a part of ``metadata``, for your own migrations; one for all inboxes of a schema."""
        return inbox_table(metadata, self.schema)

    @overload
    def first(self, session: AnyAsync, key: KeyText = "", **named: Unpack[Named]) -> Marking: ...

    @overload
    def first(self, session: AnySync, key: KeyText = "", **named: Unpack[Named]) -> Entry: ...

    def first(
        self,
        session: AnyAsync | AnySync,
        key: KeyText = "",
        *,
        caller: KeyText = "",
        record: str = "",
        payload: Any = None,
        sent_at: datetime | None = None,
        aggregate: KeyText = "",
        sequence: int | None = None,
    ) -> Marking | Entry:
        """Mark a message in the session's transaction; true where this delivery is the first. Awaited, where the session is.

        A concurrent delivery of the message waits here until this transaction has ended. ``key`` and ``caller`` name the message
        as in a `Delivery`; ``record`` does so instead, where the message brings a record's id of the gateway's. With a
        ``payload``, another one under the same key raises `KeyReused`. With ``sent_at``, when the message was sent (with its time
        zone), one that is older than what the inbox has forgotten, and has no marker, raises `Forgotten`.

        With an ``order`` the message has its ``aggregate``'s id and its ``sequence``, or raises `SequenceInvalid`, and the
        entry's ``decision`` is what its number makes of it. These two name the message, which needs no ``key`` then; where there
        is one, another message under the newest number raises `SequenceForked`.

        Raises `KeyInvalid` for an empty key, `InboxBusy` where another transaction was in the way, `InboxUnavailable`
        without the database, `InboxMisused` where a marker would not hold, ``TypeError`` for another kind of session.
        """
        delivery = Delivery(key, payload, record=record, caller=caller, sent_at=sent_at)
        if self.ordered and not (key or record):
            message = Message("", None, sent_at, aggregate, sequence)
        else:
            message = identified(delivery, self.digests, aggregate, sequence)
        if isinstance(session, AsyncSession | AsyncConnection):
            return Marking(session, session.run_sync(self.mark, [message]))
        check_session(session)
        return self.mark(session, [message])[0]

    async def _mark_async(self, session: AnyAsync, messages: Sequence[Message]) -> list[AsyncEntry]:
        return [AsyncEntry(entry, session) for entry in await session.run_sync(self.mark, messages)]

    @overload
    def first_many(
        self, session: AnyAsync, keys: Sequence[KeyText], **named: Unpack[NamedEach]
    ) -> Coroutine[Any, Any, list[AsyncEntry]]: ...

    @overload
    def first_many(self, session: AnySync, keys: Sequence[KeyText], **named: Unpack[NamedEach]) -> list[Entry]: ...

    def first_many(
        self,
        session: AnyAsync | AnySync,
        keys: Sequence[KeyText],
        *,
        callers: Sequence[KeyText] | None = None,
        payloads: Sequence[Any] | None = None,
        sent_at: Sequence[datetime | None] | None = None,
    ) -> Coroutine[Any, Any, list[AsyncEntry]] | list[Entry]:
        """Like `first`, for a batch of messages by one statement: an entry for each of ``keys``, in their order.

        What stands in the batch twice is first once. Batches never wait for each other's markers in a circle, in whatever order
        their keys are. ``callers``, ``payloads`` and ``sent_at`` have one item for each key. Raises what `first` raises; a
        `KeyReused` of one message is one of the batch.
        """
        messages = identified_each(keys, callers, payloads, sent_at, self.digests)
        if isinstance(session, AsyncSession | AsyncConnection):
            return self._mark_async(session, messages)
        check_session(session)
        return self.mark(session, messages)

    @overload
    def seed(self, session: AnyAsync, aggregate: KeyText, sequence: int) -> Coroutine[Any, Any, bool]: ...

    @overload
    def seed(self, session: AnySync, aggregate: KeyText, sequence: int) -> bool: ...

    def seed(self, session: AnyAsync | AnySync, aggregate: KeyText, sequence: int) -> Coroutine[Any, Any, bool] | bool:
        """Set an aggregate's last applied number, for a consumer that joins later, in the transaction of its snapshot.

        Whether it was lower; a higher one stays. Awaited, where the session is. Raises `SequenceInvalid`.
        """
        if self._sequences is None:
            raise InboxMisused('the inbox keeps no order: give it order="latest" or "contiguous"')
        sequences = self._sequences
        return in_session(session, lambda sync: sequences.seed(sync, aggregate, sequence))

    @overload
    def reset(self, session: AnyAsync) -> Coroutine[Any, Any, None]: ...

    @overload
    def reset(self, session: AnySync) -> None: ...

    def reset(self, session: AnyAsync | AnySync) -> Coroutine[Any, Any, None] | None:
        """Forget all of this consumer, so that what it is sent again is applied again. Awaited, where the session is.

        First in the transaction that then empties what it has made: markers, or with an ``order`` numbers and what is parked, go
        with that, or not at all, and so does what was forgotten (`Forgotten`). On PostgreSQL it waits for each transaction that
        has written into the inbox, ``wait_timeout`` seconds at most; consumers wait for this one, and are `InboxBusy` where that
        is too long. The role needs DELETE on ``oncegate_inbox``, or ``oncegate_parked``.

        Raises `InboxBusy`, `InboxUnavailable`, and `InboxMisused` where something was written before.
        """

        return in_session(session, self._reset.reset)

    @overload
    def transaction(
        self, sessions: async_sessionmaker[AsyncOf], *, batch: bool = False
    ) -> Callable[
        [Callable[Concatenate[Payload, AsyncOf, P], Coroutine[Any, Any, Any]]],
        Callable[Concatenate[Payload, P], Coroutine[Any, Any, Any]],
    ]: ...

    @overload
    def transaction(
        self, sessions: sessionmaker[SyncOf], *, batch: bool = False
    ) -> Callable[[Callable[Concatenate[Payload, SyncOf, P], Any]], Callable[Concatenate[Payload, P], Any]]: ...

    def transaction(self, sessions: Any, *, batch: bool = False) -> Callable[[Any], Any]:
        """Decorates a consumer's handler of a payload and a session: begin, mark, call, keep its result, commit.

        What it makes is a handler for a worker or for `Subscription.execute`, whose delivery it marks. A duplicate returns the
        kept result. The handler doesn't commit: it returns, or raises to roll back.

        With ``batch``, it is one for `Subscription.execute_many`: the handler gets a list of payloads, those of the messages that
        no delivery was executed of before, and returns a list with a result for each, or ``None``. All of a batch is
        one transaction; where that fails, each message is done again in one of its own, so that a poison one fails alone.

        Besides what `first` raises: `CommitUnknown` where the connection broke during COMMIT, `InboxBusy` and `InboxUnavailable`
        for the database's errors in the handler too.
        """
        check_maker(sessions)
        if batch and self.ordered:
            raise TypeError("an order takes one message at a time: leave out batch=True, and use Subscription.execute")

        def decorate(handler: Callable[..., Any]) -> Callable[..., Any]:
            made, sweep = decorated(self, self._sequences, sessions, handler, batch=batch)
            if sweep is not None:
                self._maintenance.sweeps.append(sweep)
            set_inbox(made, self)
            if isinstance(engine := sessions.kw.get("bind"), AsyncEngine | Engine):
                vars(made)["maintained"] = functools.partial(self.maintained, engine)  # for a worker
            vars(made)["following"] = self.following
            vars(made)["watched_by"] = self._writer.watch_by
            return made

        return decorate

    def check_sessions(self, sessions: object) -> None:
        """Raises ``TypeError`` for what is no ``async_sessionmaker``."""
        if not isinstance(sessions, async_sessionmaker):
            raise TypeError(f"sessions is a {type(sessions).__name__}: give an async_sessionmaker")

    async def execute(
        self,
        sessions: async_sessionmaker[AsyncOf],
        handler: Callable[[AsyncOf], Awaitable[Any]],
        *,
        keeps: Callable[[Any], bool] = is_result,
    ) -> Executed:
        """Like `transaction`, for a handler of a session alone; ``keeps`` chooses the results that are kept."""
        return await execute_awaited(self, sessions, handler, keeps)

    def measure(self, session: Session | Connection) -> InboxStats:
        """How many rows the table has, and since when, without reading all of a large one; ``watch`` is notified, too.

        With an asynchronous session: ``await session.run_sync(billing.measure)``. Raises SQLAlchemy's errors.
        """
        connection = session if isinstance(session, Connection) else session.connection()
        return self._maintenance.measure(connection)

    def maintained(
        self, engine: AsyncEngine | Engine, *, every: float = 3600.0, batch_size: int = BATCH_SIZE
    ) -> AbstractAsyncContextManager[None]:
        """While it is entered, what is older than ``retention`` is forgotten every so many seconds, ``batch_size`` at a time.

        In transactions of its own. The engine's role needs DELETE besides what consumers need. Any number of processes may do
        it. What fails is logged, and done the next time. ``watch`` is notified of what is deleted, and of the table's size.
        """
        return self._maintenance.maintained(engine, every, batch_size)

    def following(self, *, every: float = 5.0) -> AbstractAsyncContextManager[None]:
        """While it is entered, parked messages whose turn has come are run every so many seconds, and at once, as after a death.

        For inboxes with ``order="contiguous"``, and what `transaction` has decorated; `maintained` does it, too.
        """
        return self._maintenance.following(every)

    def on_unmarked(self, count: int) -> None:
        """Count messages without a key that are executed without a marker."""
        self.unmarked += count
        self._writer.count("unmarked", count)

    def mark(self, session: Session | Connection, messages: Sequence[Message]) -> list[Entry]:
        """Like `first_many`, for messages whose records' ids are known."""
        return self._writer.mark(session, messages)
