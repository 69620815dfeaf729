"""Messages and a database: an inbox, the order of messages, an outbox, its relay, projections. SQLAlchemy, PostgreSQL or SQLite.

With the inbox a consumer's effect in its database happens once, whatever the broker and the hook's records do:

    billing = Inbox("billing")

    async with sessions.begin() as session:
        if await billing.first(session, key):
            session.add(Payment(...))

A marker of each message is written in the transaction of its effect: both are committed, or neither.
"""

try:
    import sqlalchemy as _sqlalchemy  # noqa: F401  # for the line that says what is missing
except ImportError as missing:  # pragma: no cover
    raise ImportError("oncegate.sql needs SQLAlchemy 2: pip install 'oncegate[sql]', and a driver") from missing

from oncegate.sql.database.errors import (
    CommitUnknown,
    Forgotten,
    InboxBusy,
    InboxMisused,
    InboxUnavailable,
    KeyReused,
    SequenceEarly,
    SequenceForked,
    SequenceInvalid,
)
from oncegate.sql.inbox.inbox import Inbox
from oncegate.sql.inbox.stats import InboxStats
from oncegate.sql.marking.entry import AsyncEntry, Entry
from oncegate.sql.order.guard import Decision
from oncegate.sql.outbox.misuse import OutboxMisused
from oncegate.sql.outbox.outbox import Added, Outbox
from oncegate.sql.outbox.relay import Relay
from oncegate.sql.outbox.sequences import Sequences, VersionConflict
from oncegate.sql.outbox.sources.outbox_source import OutboxSource
from oncegate.sql.outbox.sources.source import OutboxBacklog, OutboxMessage, RefusedMessage, Source
from oncegate.sql.outbox.sources.table_source import TableSource
from oncegate.sql.projections.position import ProjectionMisused
from oncegate.sql.projections.projection import Projection

__all__ = [
    "Added",
    "AsyncEntry",
    "CommitUnknown",
    "Decision",
    "Entry",
    "Forgotten",
    "Inbox",
    "InboxBusy",
    "InboxMisused",
    "InboxStats",
    "InboxUnavailable",
    "KeyReused",
    "Outbox",
    "OutboxBacklog",
    "OutboxMessage",
    "OutboxMisused",
    "OutboxSource",
    "Projection",
    "ProjectionMisused",
    "RefusedMessage",
    "Relay",
    "SequenceEarly",
    "SequenceForked",
    "SequenceInvalid",
    "Sequences",
    "Source",
    "TableSource",
    "VersionConflict",
]
