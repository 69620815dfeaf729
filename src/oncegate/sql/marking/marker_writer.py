"""Writes the markers of messages in a session's transaction, and says of each message whether this delivery is its first."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from sqlalchemy import Connection, Table
from sqlalchemy.orm import Session

from oncegate.sql.database.errors import Forgotten, is_of_database
from oncegate.sql.database.types import DIALECTS
from oncegate.sql.marking.entry import Entry, Kept
from oncegate.sql.marking.statements import Marked, Message, Statements, statements
from oncegate.sql.marking.writer import Writer
from oncegate.sql.order.guard import Decision

log = logging.getLogger("oncegate.inbox")

Forms = Sequence[tuple[Message, Marked]]
"""A message by each secret in use, and the markers that it has so."""


class Earlier(NamedTuple):
    """An earlier delivery, and the ``result`` that it has kept, in JSON."""

    result: str | None


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
            by_secret = [message.by_each_secret() for message in messages]
            marked = iter(known.mark(connection, [form for forms in by_secret for form in forms]))
            found = [[(form, next(marked)) for form in forms] for forms in by_secret]
            stored = [self._earlier(forms, len(known.names)) for forms in found]
            for forms, earlier in zip(found, stored, strict=True):
                self._complete(connection, known, forms, earlier)
        except Exception as error:
            if not is_of_database(error):
                raise
            self.raise_meaning(error)
        records = {forms[0].record: [form.record for form in forms] for forms in by_secret}

        def store(kept: list[Kept]) -> None:
            parameters = [
                {"_message": record, "_result": each.stored} for each in kept for record in records[each.record]
            ]
            connection.execute(known.keep, parameters if len(parameters) > 1 else parameters[0])

        entries = []
        for message, earlier in zip(messages, stored, strict=True):
            decision = Decision.FIRST if earlier is None else Decision.DUPLICATE
            result = None if earlier is None else earlier.result
            entries.append(
                Entry(message.record, decision=decision, stored=result, store=store, max_result=self._max_result)
            )
        for entry in entries:
            self.count(entry.decision.value)
        return entries

    def _earlier(self, forms: Forms, count: int) -> Earlier | None:
        """What the first delivery left, or ``None``: this is the first. Raises `KeyReused`, and `Forgotten`."""
        if all(len(marked.written) == count for _, marked in forms):
            return None
        message = forms[0][0]
        earlier = [marker for _, marked in forms for marker in marked.earlier]
        if not earlier and message.sent_at is not None:
            self.count("forgotten")
            raise Forgotten(
                f"record {message.record}: sent before what the inbox has forgotten, and it may have been processed"
            )
        for each in earlier:
            if not self.check_fingerprint(message, each.fingerprint):
                break
        return Earlier(next((each.result for each in earlier if each.result is not None), None))

    @staticmethod
    def _complete(connection: Connection, known: Statements, forms: Forms, earlier: Earlier | None) -> None:
        """Store the kept result with the markers that were missing: the earlier ones may be gone before these are."""
        if earlier is None or earlier.result is None:
            return
        late = [{"_message": form.record, "_result": earlier.result} for form, marked in forms if marked.written]
        if late:
            connection.execute(known.keep, late)
