"""Writes the markers of messages in a session's transaction, and says of each message whether this delivery is its first."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from sqlalchemy import Connection, Row, Table
from sqlalchemy.orm import Session

from oncegate.sql.database.errors import Forgotten, is_of_database
from oncegate.sql.database.types import DIALECTS
from oncegate.sql.marking.entry import Entry, Kept
from oncegate.sql.marking.statements import Message, Statements, statements
from oncegate.sql.marking.writer import Writer
from oncegate.sql.order.guard import Decision

log = logging.getLogger("oncegate.inbox")

Marked = Sequence[tuple[Message, Collection[str]]]
"""A message by each secret in use, and the names under which it has got a marker so."""


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
            forms = [form for each in by_secret for form in each]
            written, seen = known.mark(connection, forms)
            count = len(known.names)
            unseen = [
                form.record
                for form, names in zip(forms, written, strict=True)
                if len(names) < count and len(names) + len(seen.get(form.record, ())) < count
            ]
            rows = {**seen, **known.rows(connection, unseen)}
            marked = iter(zip(forms, written, strict=True))
            found = [list(islice(marked, len(each))) for each in by_secret]
            first = [all(len(names) == count for _, names in each) for each in found]
            stored = [None if new else self._earlier(each, rows) for each, new in zip(found, first, strict=True)]
            for each, result in zip(found, stored, strict=True):
                self._complete(connection, known, each, result)
        except Exception as error:
            if not is_of_database(error):
                raise
            self.raise_meaning(error)

        records = {
            message.record: [form.record for form in each] for message, each in zip(messages, by_secret, strict=True)
        }

        def store(kept: list[Kept]) -> None:
            parameters = [
                {"_message": record, "_result": each.stored} for each in kept for record in records[each.record]
            ]
            connection.execute(known.keep, parameters if len(parameters) > 1 else parameters[0])

        entries = [
            Entry(
                message.record,
                decision=Decision.FIRST if new else Decision.DUPLICATE,
                stored=result,
                store=store,
                max_result=self._max_result,
            )
            for message, result, new in zip(messages, stored, first, strict=True)
        ]
        for new in first:
            self.count("first" if new else "duplicate")
        return entries

    def _earlier(self, marked: Marked, rows: Mapping[str, Sequence[Row[Any]]]) -> str | None:
        """The result that the first delivery has kept, in JSON. Raises `KeyReused`, and `Forgotten` where there was none."""
        message = marked[0][0]
        earlier = [row for form, names in marked for row in rows.get(form.record, ()) if row.consumer not in names]
        if not earlier and message.sent_at is not None:
            self.count("forgotten")
            raise Forgotten(
                f"record {message.record}: sent before what the inbox has forgotten, and it may have been processed"
            )
        for row in earlier:
            if not self.check_fingerprint(message, row.fingerprint):
                break
        return next((row.result for row in earlier if row.result is not None), None)

    @staticmethod
    def _complete(connection: Connection, known: Statements, marked: Marked, result: str | None) -> None:
        """Store the kept ``result`` with the markers that were missing: the earlier ones may be gone before these are."""
        late = [{"_message": form.record, "_result": result} for form, names in marked if names]
        if result is not None and late:
            connection.execute(known.keep, late)
