"""The markers of one message: which consumers have processed it, and when."""

from dataclasses import asdict, dataclass
from datetime import datetime

from sqlalchemy import Connection, MetaData, Table, select

from oncegate.middleware.consumers.sql_interface import RECORD_ID, Delivery, Digests, KeyInvalid
from oncegate.sql.database.access import Database, NotDone, check_there, in_database
from oncegate.sql.database.types import utc
from oncegate.sql.inbox.arguments import record_of
from oncegate.sql.inbox.stats import consumers
from oncegate.sql.marking.table import inbox_table


@dataclass(frozen=True, slots=True)
class Marker:
    """A consumer's marker. ``result_bytes`` is the size of what was kept, ``None`` where nothing was."""

    consumer: str
    received_at: datetime
    result_bytes: int | None
    fingerprint: bytes | None

    def as_json(self) -> dict[str, str | int | None]:
        """The marker's members."""
        fingerprint = None if self.fingerprint is None else self.fingerprint.hex()
        return asdict(self) | {"received_at": self.received_at.isoformat(), "fingerprint": fingerprint}


def records_of(key: str, caller: str, digests: Digests) -> list[str]:
    """A message's id by its key, by each secret in use; the key may be that id already. Raises `NotDone`."""
    if RECORD_ID.fullmatch(key):
        return [key]
    delivery = Delivery(key, caller=caller)
    try:
        return [record_of(delivery, each) for each in (digests, digests.former) if each is not None]
    except KeyInvalid as error:
        raise NotDone(str(error), usage=True) from None


def find(database: Database, schema: str | None, key: str, caller: str, digests: Digests) -> tuple[str, list[Marker]]:
    """The record's id and the markers of a message by its key, which may be that id. Raises `NotDone`.

    While two secrets are in use, a consumer's marker by the first one counts, and the id is that of the first marker.
    """
    table, records = inbox_table(MetaData(), schema), records_of(key, caller, digests)

    def search(connection: Connection) -> tuple[str, list[Marker]]:
        found = {record: markers(connection, table, record) for record in records}
        by_consumer = {marker.consumer: marker for record in reversed(records) for marker in found[record]}
        record = next((record for record in records if found[record]), records[0])
        return record, [by_consumer[consumer] for consumer in sorted(by_consumer)]

    return in_database(database, search)


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
            None if row.result is None else len(row.result.encode()),
            row.fingerprint,
        )
        for row in connection.execute(query.where(named, table.c.message == record).order_by(table.c.consumer))
    ]
