"""What holds up the aggregates of an order, as far as its database shows it."""

from datetime import UTC, datetime
from typing import Final

from sqlalchemy import Connection, MetaData, func, inspect, select

from oncegate.sql.database.findings import LONG_SECONDS, DatabaseFinding, table_findings
from oncegate.sql.database.types import utc
from oncegate.sql.order.table import ORDER, PARKED, order_table, parked_table

_NEEDED: Final = {ORDER: "SELECT, INSERT, UPDATE", PARKED: "SELECT, INSERT, UPDATE, DELETE"}


def order_findings(connection: Connection, schema: str | None) -> list[DatabaseFinding]:
    """The tables, what the role may, and for each consumer the aggregates that wait; nothing where no order is kept."""
    order, parked = order_table(MetaData(), schema), parked_table(MetaData(), schema)
    if not inspect(connection).has_table(ORDER, schema=schema):
        return []
    users = "a consumer with an order needs it"
    found = table_findings(connection, [order, parked], _NEEDED, group="inbox", users=users)
    if any(each.severity == "failed" for each in found):
        return found
    columns = parked.c
    oldest = func.min(columns.parked_at)
    query = select(columns.consumer, func.count(columns.aggregate.distinct()), func.count(), oldest)
    query = query.where(columns.applied.is_(False)).group_by(columns.consumer).order_by(oldest)
    rows = connection.execute(query).all()
    if not rows:
        return [*found, DatabaseFinding("order", "good", "no aggregate waits for a number")]
    return [*found, *[_finding(*row) for row in rows]]


def _finding(consumer: str, aggregates: int, messages: int, oldest: datetime) -> DatabaseFinding:
    since = utc(oldest)
    age = (datetime.now(UTC) - since).total_seconds()
    line = f"{consumer}: {aggregates} aggregates wait, {messages} messages are parked"
    if age <= LONG_SECONDS:
        return DatabaseFinding("order", "good", f"{line}, none for long")
    line += f", the oldest since {since:%Y-%m-%d %H:%M:%S} UTC, for {age:.0f} s: oncegate inbox waiting"
    return DatabaseFinding("order", "advice", line)
