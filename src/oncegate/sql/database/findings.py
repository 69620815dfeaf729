"""What is wrong with the tables in a database, and what its role may not: a line each, for operators."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from sqlalchemy import Connection, Table, inspect, text

from oncegate.sql.database.access import create_command

LONG_SECONDS: Final = 60.0
"""A message that waits for longer, or a transaction that is open for longer, is worth advice."""


@dataclass(frozen=True, slots=True)
class DatabaseFinding:
    """One line of what was found."""

    area: str
    severity: Literal["good", "advice", "failed"]
    text: str


def table_findings(
    connection: Connection, tables: Sequence[Table], needed: Mapping[str, str], *, group: str, users: str
) -> list[DatabaseFinding]:
    """About each of ``tables``: whether it is there, as ``oncegate GROUP create`` makes it, and its role has what is ``needed``.

    ``users`` names who needs that.
    """

    def finding(table: Table) -> DatabaseFinding:
        name, schema = table.fullname, table.schema
        if not inspect(connection).has_table(table.name, schema=schema):
            return DatabaseFinding("table", "failed", f"{name} is missing: {create_command(table, group)}")
        columns = {each["name"] for each in inspect(connection).get_columns(table.name, schema=schema)}
        if missing := ", ".join(sorted(set(table.c.keys()) - columns)):
            return DatabaseFinding("table", "failed", f"{name} has no column {missing}: it is of another version")
        if lacking := _lacking(connection, name, needed[table.name]):
            return DatabaseFinding("table", "advice", f"{name}: this role has no {lacking}; {users}")
        return DatabaseFinding("table", "good", f"{name} is there, and this role may use it")

    return [finding(table) for table in tables]


def _lacking(connection: Connection, table: str, needed: str) -> str:
    if connection.dialect.name != "postgresql":
        return ""
    query = text("SELECT has_table_privilege(current_user, CAST(:table AS text), CAST(:privilege AS text))")
    wanted = needed.split(", ")
    return ", ".join(each for each in wanted if not connection.scalar(query, {"table": table, "privilege": each}))
