"""What is wrong with the tables in a database, and what its role may not: a line each, for operators."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from sqlalchemy import Connection, Table, inspect, text

LONG_SECONDS: Final = 60.0
"""After which a message, or a transaction, has been there for long."""


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

    ``users`` says who needs that.
    """
    found = []
    for table in tables:
        option = f" --schema {table.schema}" if table.schema else ""
        if not inspect(connection).has_table(table.name, schema=table.schema):
            line = f"{table.fullname} is missing: oncegate {group} create --database URL{option}"
            found.append(DatabaseFinding("table", "failed", line))
            continue
        columns = {each["name"] for each in inspect(connection).get_columns(table.name, schema=table.schema)}
        if missing := sorted(set(table.c.keys()) - columns):
            line = f"{table.fullname} has no column {', '.join(missing)}: it is of another version"
            found.append(DatabaseFinding("table", "failed", line))
        elif lacking := _lacking(connection, table.fullname, needed[table.name]):
            line = f"{table.fullname}: this role has no {lacking}; {users}"
            found.append(DatabaseFinding("table", "advice", line))
        else:
            found.append(DatabaseFinding("table", "good", f"{table.fullname} is there, and this role may use it"))
    return found


def _lacking(connection: Connection, table: str, needed: str) -> str:
    if connection.dialect.name != "postgresql":
        return ""
    query = text("SELECT has_table_privilege(current_user, CAST(:table AS text), CAST(:privilege AS text))")
    wanted = needed.split(", ")
    return ", ".join(each for each in wanted if not connection.scalar(query, {"table": table, "privilege": each}))
