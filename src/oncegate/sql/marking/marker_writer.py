"""Writes the markers of messages in a session's transaction, and says of each message whether this delivery is its first."""

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Row, Table
from sqlalchemy.orm import Session

from oncegate.sql.database.errors import Forgotten, is_of_database
from oncegate.sql.database.types import DIALECTS
from oncegate.sql.marking.entry import Entry, Kept
from oncegate.sql.marking.statements import Message, statements
from oncegate.sql.marking.writer import Writer
from oncegate.sql.order.guard import Decision

log = logging.getLogger("oncegate.inbox")


class MarkerWriter(Writer):
    """Of an `Inbox`, whose arguments these are; the first of ``names`` is its consumer's, the others are aliases."""

    def __init__(
        self,
        table: Table,
        names: Sequence[str],
        *,
        runs_forgotten: bool,
        wait_timeout: float,
        idle_timeout: float,
        **options: Any,
    ) -> None:
        super().__init__(table, names, **options)
        self._runs_forgotten = runs_forgotten
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
            connection = self.enter(session)
            known = self._statements[connection.dialect.name]
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
            self.raise_meaning(error)

        def store(kept: list[Kept]) -> None:
            parameters = [{"_message": each.record, "_result": each.stored} for each in kept]
            connection.execute(known.keep, parameters if len(kept) > 1 else parameters[0])

        entries = [
            Entry(
                message.record,
                decision=Decision.FIRST if new else Decision.DUPLICATE,
                stored=None if new else self._earlier(message, rows.get(message.record, ()), names),
                store=store,
                max_result=self._max_result,
            )
            for message, names, new in zip(messages, written, first, strict=True)
        ]
        for new in first:
            self.count("first" if new else "duplicate")
        return entries

    def _earlier(self, message: Message, rows: Sequence[Row[Any]], written: Collection[str]) -> str | None:
        """The result that the first delivery has kept, in JSON. Raises `KeyReused`, and `Forgotten` where there was none."""
        earlier = [row for row in rows if row.consumer not in written]
        if not earlier and message.sent_at is not None:
            self.count("forgotten")
            raise Forgotten(
                f"record {message.record}: sent before what the inbox has forgotten, and it may have been processed"
            )
        for row in earlier:
            if not self.check_fingerprint(message, row.fingerprint):
                break
        return next((row.result for row in earlier if row.result is not None), None)
