"""Writes the markers of messages in a session's transaction, which shows of each message whether this delivery is its first."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Table

from oncegate.sql.database.errors import Forgotten
from oncegate.sql.database.sessions import AnySync
from oncegate.sql.database.types import DIALECTS
from oncegate.sql.marking.entry import Entry, Keeping
from oncegate.sql.marking.statements import Marked, MarkerStatements, Message
from oncegate.sql.marking.writer import Writer
from oncegate.sql.order.guard import Decision


class MarkerWriter(Writer):
    """See `Writer`. ``limits`` are those of `limits_of`."""

    def __init__(
        self, table: Table, names: Sequence[str], limits: str, *, runs_forgotten: bool, **options: Any
    ) -> None:
        super().__init__(table, names, **options)
        self._names = len(names)
        self._runs_forgotten = runs_forgotten
        self._statements = {dialect: MarkerStatements(dialect, table, names, limits) for dialect in DIALECTS}

    def mark(self, session: AnySync, messages: Sequence[Message]) -> list[Entry]:
        """See `Writer.mark`."""
        if not messages:
            return []
        if self._runs_forgotten:
            messages = [replace(each, sent_at=None) for each in messages]
        by_secret = [message.by_each_secret() for message in messages]
        with self.meanings():
            connection = self.enter(session)
            known = self._statements[connection.dialect.name]
            marked = iter(known.mark(connection, [form for forms in by_secret for form in forms]))
            keeping = Keeping(connection, known.keep, self._max_result)
            entries = [self._entry(keeping, forms, [next(marked) for _ in forms]) for forms in by_secret]
        for entry in entries:
            self.count(entry.decision.value)
        return entries

    def _entry(self, keeping: Keeping, forms: Sequence[Message], marked: Sequence[Marked]) -> Entry:
        """The entry of a message by its forms, one for each secret in use, and their markers. Raises `KeyReused`, `Forgotten`."""
        message = forms[0]
        keys = [{"_message": form.record} for form in forms]
        if all(len(each.written) == self._names for each in marked):
            return Entry(message.record, Decision.FIRST, keeping, keys)
        earlier = [row for each in marked for row in each.earlier]
        if not earlier and message.sent_at is not None:
            self.count("forgotten")
            raise Forgotten(
                f"record {message.record}: sent before what the inbox has forgotten, and it may have been processed"
            )
        for row in earlier:
            if not self.check_fingerprint(message, row.fingerprint):
                break
        result = next((row.result for row in earlier if row.result is not None), None)
        if result is not None:  # with the markers that were missing, too: the earlier ones may be gone before these are
            late = [key | {"_result": result} for key, each in zip(keys, marked, strict=True) if each.written]
            keeping.store(late)
        return Entry(message.record, Decision.DUPLICATE, keeping, keys, stored=result)
