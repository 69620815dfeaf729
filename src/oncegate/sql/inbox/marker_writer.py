"""Writes the markers of messages in a session's transaction, and says of each message whether this delivery is its first."""

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from sqlalchemy import Connection, Row, Table
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import Session

from oncegate.middleware.admission.observe import Watch
from oncegate.sql.database.errors import Forgotten, InboxMisused, KeyReused, is_of_database, meaning
from oncegate.sql.database.misuse import check_commits_nothing, marked
from oncegate.sql.database.types import DIALECTS
from oncegate.sql.inbox.entry import Entry, Kept
from oncegate.sql.inbox.statements import Message, Statements, statements

log = logging.getLogger("oncegate.inbox")


class MarkerWriter:
    """Of an `Inbox`, whose arguments these are; the first of ``names`` is its consumer's, the others are aliases."""

    def __init__(
        self,
        table: Table,
        names: Sequence[str],
        *,
        max_result: int,
        warns: bool,
        runs_forgotten: bool,
        strict: bool,
        wait_timeout: float,
        idle_timeout: float,
        watch: Watch | None,
    ) -> None:
        self._table = table
        self._consumer = names[0]
        self._max_result = max_result
        self._warns = warns
        self._runs_forgotten = runs_forgotten
        self._strict = strict
        self._watch = watch
        self._statements = {
            dialect: statements(dialect, table, names, wait_timeout=wait_timeout, idle_timeout=idle_timeout)
            for dialect in DIALECTS
        }

    def mark(self, session: Session | Connection, messages: Sequence[Message]) -> list[Entry]:
        """An entry for each message, in their order. Raises what `Inbox.first` raises."""
        if not messages:
            return []
        if self._runs_forgotten:
            messages = [replace(each, sent_at=None) for each in messages]
        try:
            connection = session if isinstance(session, Connection) else session.connection()
            known = self._known(connection)
            if isinstance(session, Session):
                marked(session, strict=self._strict)
            written, seen = known.mark(connection, messages)
            count = len(known.names)
            first = [len(names) == count for names in written]
            unseen = [
                message.record
                for message, names in zip(messages, written, strict=True)
                if len(names) < count and len(names) + len(seen.get(message.record, ())) < count
            ]
            rows = {**seen, **known.rows(connection, unseen)}
        except Exception as error:
            if not is_of_database(error):
                raise
            self._raise(error)

        def store(kept: list[Kept]) -> None:
            parameters = [{"_message": each.record, "_result": each.stored} for each in kept]
            connection.execute(known.keep, parameters if len(kept) > 1 else parameters[0])

        entries = [
            Entry(
                message.record,
                first=new,
                stored=None if new else self._earlier(message, rows.get(message.record, ()), names),
                store=store,
                max_result=self._max_result,
            )
            for message, names, new in zip(messages, written, first, strict=True)
        ]
        for new in first:
            self._marked("first" if new else "duplicate")
        return entries

    def _marked(self, decision: str) -> None:
        self.notify(lambda watch: watch.message_marked(self._consumer, decision))

    def notify(self, event: Callable[[Watch], None]) -> None:
        """Call one of the watch's methods; its errors are only logged."""
        if self._watch is None:
            return
        try:
            event(self._watch)
        except Exception:  # a user's watch must not decide about a payment
            log.exception("the watch failed")

    def _raise(self, error: Exception) -> NoReturn:
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

    def _earlier(self, message: Message, rows: Sequence[Row[Any]], written: Collection[str]) -> str | None:
        """The result that the first delivery has kept, in JSON. Raises `KeyReused`, and `Forgotten` where there was none."""
        earlier = [row for row in rows if row.consumer not in written]
        if not earlier and message.sent_at is not None:
            self._marked("forgotten")
            raise Forgotten(
                f"record {message.record}: sent before what the inbox has forgotten, and it may have been processed"
            )
        for row in earlier:
            if None not in (message.fingerprint, row.fingerprint) and row.fingerprint != message.fingerprint:
                self._marked("mismatch")
                if not self._warns:
                    raise KeyReused(f"record {message.record}: the key was used for another payload")
                log.warning("record %s: the key was used for another payload: taken for a duplicate", message.record)
                break
        return next((row.result for row in earlier if row.result is not None), None)
