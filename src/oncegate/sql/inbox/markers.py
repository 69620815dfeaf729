"""The markers of one message: which consumers have processed it, and when."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, MetaData, Table, select

from oncegate.middleware.consumers.delivery import Delivery, Rejected, SubscriptionSettings, command_key
from oncegate.middleware.rules.key import RECORD_ID, record_id
from oncegate.sql.database.access import NotDone, in_database
from oncegate.sql.database.types import utc
from oncegate.sql.inbox.stats import check_there, consumers
from oncegate.sql.marking.table import inbox_table


@dataclass(frozen=True, slots=True)
class Marker:
    """A consumer's marker. ``result_bytes`` is the size of what was kept, ``None`` where nothing was."""

    consumer: str
    received_at: datetime
    fingerprint: bytes | None
    result_bytes: int | None

    def as_json(self) -> dict[str, str | int | None]:
        """Its members."""
        return {
            "consumer": self.consumer,
            "received_at": self.received_at.isoformat(),
            "result_bytes": self.result_bytes,
            "fingerprint": None if self.fingerprint is None else self.fingerprint.hex(),
        }


def record_of(key: str, caller: str) -> str:
    """The record's id of a message by its key, which may be that id already. Raises `NotDone`."""
    if RECORD_ID.fullmatch(key):
        return key
    try:
        found = command_key("inbox", Delivery(key, caller=caller), SubscriptionSettings(on_missing_key="reject"))
    except Rejected as error:
        raise NotDone(str(error), usage=True) from None
    return record_id(found or "")


def find(database: str, schema: str | None, key: str, caller: str) -> tuple[str, list[Marker]]:
    """The record's id and the markers of a message by its key, which may be that id. Raises `NotDone`."""
    record, table = record_of(key, caller), inbox_table(MetaData(), schema)
    return record, in_database(database, lambda connection: markers(connection, table, record))


def markers(connection: Connection, table: Table, record: str) -> list[Marker]:
    """The markers of ``record`` under every consumer's name. Raises `NotDone` where there is no such table."""
    check_there(connection, table)
    # By name, since the key begins with it: by the message alone all of the table would be read.
    named = table.c.consumer.in_(consumers(connection, table))
    query = select(table.c.consumer, table.c.received_at, table.c.fingerprint, table.c.result)
    return [
        Marker(
            row.consumer,
            utc(row.received_at),
            row.fingerprint,
            None if row.result is None else len(row.result.encode()),
        )
        for row in connection.execute(query.where(named, table.c.message == record).order_by(table.c.consumer))
    ]
