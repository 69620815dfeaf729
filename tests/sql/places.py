"""Databases, and the ways into them: each way delivers a message as a user's consumer would, in its own words."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
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

    def run(self, work: Callable[[Session], Any]) -> Any:
        """The result of ``work`` in a transaction of its own."""
        raise NotImplementedError

    def run_by_hand(self, work: Callable[[Session], Any]) -> Any:
        """The result of ``work``, which begins and ends its transactions itself."""
        raise NotImplementedError

    def handler(self, inbox: Inbox, work: Callable[[Session, Any], Any]) -> Callable[..., Any]:
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
        raise NotImplementedError


def _create(table: Table, session: Session) -> None:
    table.create(session.connection(), checkfirst=True)


class SyncPlace(Place):
    """Without asyncio."""

    @cached_property
    def engine(self) -> Engine:
        return create_engine(self.url, **self.options)

    def run(self, work: Callable[[Session], Any]) -> Any:
        with Session(self.engine) as session, session.begin():
            return work(session)

    def run_by_hand(self, work: Callable[[Session], Any]) -> Any:
        with Session(self.engine) as session:
            return work(session)

    def handler(self, inbox: Inbox, work: Callable[[Session, Any], Any]) -> Callable[..., Any]:
        @inbox.transaction(sessionmaker(self.engine))
        def pay(payload: Any, session: Session) -> Any:
            return work(session, payload)

        return pay

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
        def within(session: Any) -> Outcome:
            if before:
                session.execute(text(before))
            entry = inbox.first(session, key, **options)
            if entry:
                session.execute(EFFECT, {"what": str(key).replace("\x00", "NUL")})
                if keep is not UNSET:
                    entry.keep(keep)
                effect()
            return Outcome(entry.first, entry.result, entry.decision)

        if self.connections:
            with self.engine.begin() as connection:
                return within(connection)
        with Session(self.engine) as session, session.begin():
            return within(session)


class AsyncPlace(Place):
    """With asyncio, in an event loop for each delivery."""

    @cached_property
    def engine(self) -> AsyncEngine:
        return create_async_engine(self.url, **self.options)

    def run(self, work: Callable[[Session], Any]) -> Any:
        async def run() -> Any:
            async with AsyncSession(self.engine) as session, session.begin():
                return await session.run_sync(work)

        return asyncio.run(run())

    def run_by_hand(self, work: Callable[[Session], Any]) -> Any:
        async def run() -> Any:
            async with AsyncSession(self.engine) as session:
                return await session.run_sync(work)

        return asyncio.run(run())

    def handler(self, inbox: Inbox, work: Callable[[Session, Any], Any]) -> Callable[..., Any]:
        @inbox.transaction(async_sessionmaker(self.engine))
        async def pay(payload: Any, session: AsyncSession) -> Any:
            return await session.run_sync(work, payload)

        return pay

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
        async def deliver() -> Outcome:
            if self.connections:
                async with self.engine.begin() as connection:
                    return await within(connection)
            async with AsyncSession(self.engine) as session, session.begin():
                return await within(session)

        async def within(session: Any) -> Outcome:
            if before:
                await session.execute(text(before))
            entry = await inbox.first(session, key, **options)
            if entry:
                await session.execute(EFFECT, {"what": str(key).replace("\x00", "NUL")})
                if keep is not UNSET:
                    await entry.keep(keep)
                effect()
            return Outcome(entry.first, entry.result, entry.decision)

        return asyncio.run(deliver())


@contextmanager
def planned_once(url: str) -> Iterator[Connection]:
    """A connection by psycopg that plans each statement once, for whatever parameters, as asyncpg does sooner or later."""
    generic = {"prepare_threshold": 0, "options": "-c plan_cache_mode=force_generic_plan"}
    engine = create_engine(url, connect_args=generic)
    with engine.connect() as connection:
        yield connection
    engine.dispose()
