"""The base of writers of markers and of numbers: the session's connection, errors, the watch."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy import Connection, Table
from sqlalchemy.orm import Session

from oncegate.middleware.consumers.sql_interface import Watch, current, notify
from oncegate.sql.database.errors import InboxMisused, KeyReused, SequenceForked, meaning
from oncegate.sql.database.misuse import check_commits_nothing, marked
from oncegate.sql.database.sessions import AnySync
from oncegate.sql.database.types import DIALECTS
from oncegate.sql.marking.entry import Entry
from oncegate.sql.marking.statements import Message
from oncegate.sql.order.numbers import Numbered

log = logging.getLogger("oncegate.inbox")


class Writer:
    """The decision about messages in a session's transaction, by an `Inbox`'s arguments: the first of ``names`` is its own."""

    def __init__(
        self,
        table: Table,
        names: Sequence[str],
        *,
        max_result: int,
        warns: bool,
        strict: bool,
        watch: Watch | None,
    ) -> None:
        self._table = table
        self._consumer = names[0]
        self._max_result = max_result
        self._warns = warns
        self._strict = strict
        self._watch = watch

    def mark(self, session: AnySync, messages: Sequence[Message]) -> list[Entry]:
        """An entry for each message, in their order. Raises what `Inbox.first` raises."""
        raise NotImplementedError

    def watch_by(self, watch: Watch) -> None:
        """Have ``watch`` notified, where there is none."""
        self._watch = self._watch or watch

    def enter(self, session: AnySync) -> Connection:
        """The connection of a session whose transaction is written in. Raises `InboxMisused`, and SQLAlchemy's errors."""
        connection = session if isinstance(session, Connection) else session.connection()
        if connection.dialect.name not in DIALECTS:
            raise InboxMisused(f"the database is {connection.dialect.name}: an inbox needs PostgreSQL or SQLite")
        check_commits_nothing(connection)
        if isinstance(session, Session):
            marked(session, strict=self._strict)
        return connection

    @contextmanager
    def meanings(self) -> Iterator[None]:
        """Raises what a database's error in it means for the inbox; any other one as it is. Forks are counted."""
        try:
            yield
        except Exception as error:
            if isinstance(error, SequenceForked):
                self.count("forked")
            if (found := meaning(error, self._table.fullname)) is error:
                raise
            raise found from error

    def count(self, decision: str, messages: int = 1) -> None:
        """Notify the watch of a decision about a message, or about so many."""
        for _ in range(messages if self._watch is not None else 0):
            self.notify(lambda watch: watch.message_marked(self._consumer, decision))
        executed = current()
        if len(executed) == 1 and executed[0].trace is not None:
            executed[0].trace.marked(decision)

    def notify(self, event: Callable[[Watch], None]) -> None:
        """Call one of the watch's methods; its errors are only logged."""
        if self._watch is not None:
            notify(event, self._watch)

    def check_fingerprint(self, message: Message | Numbered, fingerprint: bytes | None) -> bool:
        """Whether the payload is that of an earlier delivery. Raises `KeyReused`, or only warns of another one."""
        if fingerprint is None or message.fingerprint in (None, fingerprint):
            return True
        if message.other is not None and fingerprint == message.other[1]:
            return True
        self.count("mismatch")
        if not self._warns:
            raise KeyReused(f"record {message.record}: the key was used for another payload")
        log.warning("record %s: the key was used for another payload: taken for a duplicate", message.record)
        return False
