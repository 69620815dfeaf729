"""Databases, and the ways into them: each way delivers a message as a user's consumer would."""

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from sqlalchemy import Connection, CursorResult, Engine, NullPool, Table, create_engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from oncegate.sql import Decision, Inbox
from oncegate.sql.inbox.create import tables

UNSET: Any = object()
EFFECT = text("INSERT INTO effects (what) VALUES (:what)")
EFFECTS_TABLE = "CREATE TABLE IF NOT EXISTS effects (what TEXT NOT NULL)"


@dataclass(frozen=True)
class Outcome:
    """What a delivery has seen."""

    first: bool
    result: Any
    decision: Decision = Decision.FIRST


class Place:
    """One database by one driver, in sessions or bare connections.

    `deliver` is a delivery's transaction: marker, effect, commit. It may be called in several threads.
    """

    def __init__(self, url: str, *, connections: bool = False, **options: Any) -> None:
        self.url = url
        self.connections = connections
        self.options = {"poolclass": NullPool, **options}  # no connection outlives its event loop

    @cached_property
    def engine(self) -> Any:
        """SQLAlchemy's, of the place's kind."""
        raise NotImplementedError

    @property
    def sync_engine(self) -> Engine:
        """The one whose events are listened to."""
        engine: Engine = getattr(self.engine, "sync_engine", self.engine)
        return engine

    @property
    def is_postgresql(self) -> bool:
        return self.url.startswith("postgresql")

    def connect_with(self, **options: Any) -> None:
        """From now on connect with ``options`` of SQLAlchemy's engine, too."""
        self.options |= options
        self.__dict__.pop("engine", None)
        self.execute(
            "SELECT 1"
        )  # SQLAlchemy looks at a server once, which must not come from several event loops at once

    def prepare(self) -> None:
        """Make the tables."""
        self.execute(EFFECTS_TABLE)
        for table in tables(None):
            self.run(partial(_create, table))

    def run(self, work: Callable[[Session], Any], *, begins: bool = True) -> Any:
        """The result of ``work`` in a transaction of its own, which it begins and ends itself where ``begins`` is false."""
        raise NotImplementedError

    def transact(self, work: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        """The result of ``work`` in a transaction of a session, or of a bare connection, of the place's kind."""
        raise NotImplementedError

    def handler(self, inbox: Inbox, work: Callable[[Session, Any], Any], *, batch: bool = False) -> Callable[..., Any]:
        """A consumer's handler, which does ``work`` in a session, with a payload, in the inbox's transaction."""
        raise NotImplementedError

    def in_a_thread(self, work: Callable[[], Any]) -> Any:
        """The result of ``work`` in a thread of its own, which may have an event loop."""
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(work).result()

    def execute(self, statement: str, **parameters: Any) -> list[Any]:
        """The rows of one statement, in a transaction of its own."""

        def execute(session: Session) -> list[Any]:
            result = session.execute(text(statement), parameters)
            return list(result.all()) if isinstance(result, CursorResult) and result.returns_rows else []

        rows: list[Any] = self.run(execute)
        return rows

    def effects(self) -> list[str]:
        return [row.what for row in self.execute("SELECT what FROM effects ORDER BY what")]

    def effects_in_order(self) -> list[str]:
        """As they were written."""
        place = "ctid" if self.is_postgresql else "rowid"
        return [row.what for row in self.execute(f"SELECT what FROM effects ORDER BY {place}")]

    def markers(self) -> list[tuple[str, str]]:
        message = "message"
        if self.is_postgresql:
            message = "overlay(translate(encode(message, 'base64'), '+/', '._') PLACING '\\:' FROM 21 FOR 0)"
        return [tuple(row) for row in self.execute(f"SELECT consumer, {message} FROM oncegate_inbox ORDER BY 1, 2")]

    def deliver(
        self,
        inbox: Inbox,
        key: Any,
        *,
        keep: Any = UNSET,
        effect: Callable[[], Any] = lambda: None,
        before: str = "",
        **options: Any,
    ) -> Outcome:
        """A delivery; ``effect`` is called after the effect of a first one, and ``before`` executed first of all."""

        async def within(session: Any) -> Outcome:
            if before:
                await done(session.execute(text(before)))
            entry = await done(inbox.first(session, key, **options))
            if entry:
                await done(session.execute(EFFECT, {"what": str(key).replace("\x00", "NUL")}))
                if keep is not UNSET:
                    await done(entry.keep(keep))
                effect()
            return Outcome(entry.first, entry.result, entry.decision)

        outcome: Outcome = self.transact(within)
        return outcome


async def done(result: Any) -> Any:
    """What a session returns; with asyncio once it is awaited."""
    return await result if inspect.isawaitable(result) else result


async def in_loop(handler: Callable[..., Any], payload: Any) -> Any:
    """What a handler of either kind returns, where an event loop runs."""
    return await done(await asyncio.to_thread(handler, payload))


def _create(table: Table, session: Session) -> None:
    table.create(session.connection(), checkfirst=True)


class SyncPlace(Place):
    """Without asyncio."""

    @cached_property
    def engine(self) -> Engine:
        return create_engine(self.url, **self.options)

    def run(self, work: Callable[[Session], Any], *, begins: bool = True) -> Any:
        with Session(self.engine) as session, session.begin() if begins else nullcontext():
            return work(session)

    def transact(self, work: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        if self.connections:
            with self.engine.begin() as connection:
                return _result(work(connection))
        with Session(self.engine) as session, session.begin():
            return _result(work(session))

    def handler(self, inbox: Inbox, work: Callable[[Session, Any], Any], *, batch: bool = False) -> Callable[..., Any]:
        @inbox.transaction(sessionmaker(self.engine), batch=batch)
        def pay(payload: Any, session: Session) -> Any:
            return work(session, payload)

        return pay


class AsyncPlace(Place):
    """With asyncio, in an event loop for each delivery."""

    @cached_property
    def engine(self) -> AsyncEngine:
        return create_async_engine(self.url, **self.options)

    def run(self, work: Callable[[Session], Any], *, begins: bool = True) -> Any:
        async def run() -> Any:
            async with AsyncSession(self.engine) as session, session.begin() if begins else nullcontext():
                return await session.run_sync(work)

        return asyncio.run(run())

    def transact(self, work: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        async def transact() -> Any:
            if self.connections:
                async with self.engine.begin() as connection:
                    return await work(connection)
            async with AsyncSession(self.engine) as session, session.begin():
                return await work(session)

        return asyncio.run(transact())

    def handler(self, inbox: Inbox, work: Callable[[Session, Any], Any], *, batch: bool = False) -> Callable[..., Any]:
        @inbox.transaction(async_sessionmaker(self.engine), batch=batch)
        async def pay(payload: Any, session: AsyncSession) -> Any:
            return await session.run_sync(work, payload)

        return pay


def _result(work: Coroutine[Any, Any, Any]) -> Any:
    """Of what awaits nothing."""
    try:
        work.send(None)
    except StopIteration as ended:
        return ended.value
    raise RuntimeError("it awaits something")


def place_of(url: str, **options: Any) -> Place:
    """The place of a URL, of its driver's kind."""
    of_asyncio = "asyncpg" in url or "aiosqlite" in url
    return (AsyncPlace if of_asyncio else SyncPlace)(url, **options)


@contextmanager
def planned_once(url: str) -> Iterator[Connection]:
    """A connection by psycopg that plans each statement once, for whatever parameters, as asyncpg does sooner or later."""
    generic = {"prepare_threshold": 0, "options": "-c plan_cache_mode=force_generic_plan"}
    engine = create_engine(url, connect_args=generic)
    with engine.connect() as connection:
        yield connection
    engine.dispose()
