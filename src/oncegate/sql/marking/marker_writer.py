"""Writes the markers of messages in a session's transaction, and says of each message whether this delivery is its first."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.orm import Session

from oncegate.sql.database.errors import Forgotten, is_of_database
from oncegate.sql.database.types import DIALECTS
from oncegate.sql.marking.entry import Entry, Kept
from oncegate.sql.marking.statements import Marked, Message, statements
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
            found = known.mark(connection, messages)
        except Exception as error:
            if not is_of_database(error):
                raise
            self.raise_meaning(error)

        def store(kept: list[Kept]) -> None:
            parameters = [{"_message": each.record, "_result": each.stored} for each in kept]
            connection.execute(known.keep, parameters if len(kept) > 1 else parameters[0])

        entries = []
        for message, marked in zip(messages, found, strict=True):
            first = len(marked.written) == len(known.names)
            stored = None if first else self._earlier(message, marked)
            decision = Decision.FIRST if first else Decision.DUPLICATE
            entries.append(
                Entry(message.record, decision=decision, stored=stored, store=store, max_result=self._max_result)
            )
        for entry in entries:
            self.count(entry.decision.value)
        return entries

    def _earlier(self, message: Message, marked: Marked) -> str | None:
        """The result that the first delivery has kept, in JSON. Raises `KeyReused`, and `Forgotten` where there was none."""
        if not marked.earlier and message.sent_at is not None:
            self.count("forgotten")
            raise Forgotten(
                f"record {message.record}: sent before what the inbox has forgotten, and it may have been processed"
            )
        for each in marked.earlier:
            if not self.check_fingerprint(message, each.fingerprint):
                break
        return next((each.result for each in marked.earlier if each.result is not None), None)
