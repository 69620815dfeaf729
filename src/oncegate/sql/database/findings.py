"""Findings about a database: what is wrong with the tables, and what its role may; a line each, for operators.

Each query is one that any role may ask: what a role can't read is a line of its own, never an error.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from sqlalchemy import Connection, Table, inspect, text

from oncegate.sql.database.access import create_command

LONG_SECONDS: Final = 60.0
"""A message that waits for longer, or a transaction that is open for longer, is worth advice."""
_PRIVILEGES: Final = text(
    "SELECT given FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS given, pg_class AS c"
    " JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.relname = :name"
    " AND CASE WHEN CAST(:schema AS text) IS NULL THEN pg_table_is_visible(c.oid) ELSE n.nspname = :schema END"
    " AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, given)"
)
"""By number, not by name: to look a name up needs the schema's USAGE."""
_USAGE: Final = text("SELECT has_schema_privilege(oid, 'USAGE') FROM pg_namespace WHERE nspname = :schema")

Task = Mapping[str, str]
"""The privileges that a role needs for a task, by the table's name."""


@dataclass(frozen=True, slots=True)
class DatabaseFinding:
    """One line of what was found."""

    area: str
    severity: Literal["good", "advice", "failed"]
    text: str


def table_findings(
    connection: Connection, tables: Sequence[Table], tasks: Mapping[str, Task], *, group: str
) -> list[DatabaseFinding]:
    """About each of ``tables``: whether it is there, as ``oncegate GROUP create`` makes it; then for which ``tasks`` the role
    has what they need.
    """

    def finding(table: Table) -> DatabaseFinding:
        name, schema = table.fullname, table.schema
        if not inspect(connection).has_table(table.name, schema=schema):
            return DatabaseFinding("table", "failed", f"{name} is missing: {create_command(table, group)}")
        columns = {each["name"] for each in inspect(connection).get_columns(table.name, schema=schema)}
        if missing := ", ".join(sorted(set(table.c.keys()) - columns)):
            return DatabaseFinding("table", "failed", f"{name} has no column {missing}: it is of another version")
        return DatabaseFinding("table", "good", f"{name} is there")

    is_postgresql = connection.dialect.name == "postgresql"
    schema = tables[0].schema
    if is_postgresql and connection.scalar(_USAGE, {"schema": schema}) is False:  # no table of it can be described
        line = f"{_role(connection)} may do nothing here: it lacks USAGE on the schema {schema}"
        return [DatabaseFinding("role", "advice", line)]
    found = [finding(table) for table in tables]
    if is_postgresql and all(each.severity == "good" for each in found):
        found.append(_may(connection, tables, tasks))
    return found


def _role(connection: Connection) -> str:
    return str(connection.scalar(text("SELECT CAST(current_user AS text)")))


def _may(connection: Connection, tables: Sequence[Table], tasks: Mapping[str, Task]) -> DatabaseFinding:
    """The findings about a role: what it has all privileges for, and what it lacks for the rest."""
    role = _role(connection)
    given = {table.name: privileges(connection, table) for table in tables}
    lacks = {
        task: [
            f"{missing} on {table.fullname}"
            for table in tables
            if (missing := ", ".join(_lacking(given[table.name], needed.get(table.name, ""))))
        ]
        for task, needed in tasks.items()
    }
    can = [task for task, lacking in lacks.items() if not lacking]
    rest = "; ".join(f"to {task} it lacks {' and '.join(lacking)}" for task, lacking in lacks.items() if lacking)
    if not can:
        return DatabaseFinding("role", "advice", f"{role} may do nothing here: {rest}")
    line = f"{role} may {', '.join(can)}" + (f"; {rest}" if rest else "")
    return DatabaseFinding("role", "good", line)


def _lacking(given: frozenset[str], needed: str) -> list[str]:
    return [each for each in needed.split(", ") if each and each not in given]


def privileges(connection: Connection, table: Table) -> frozenset[str]:
    """The privileges that the role has on ``table``; SQLite has no roles."""
    if connection.dialect.name != "postgresql":
        return frozenset({"SELECT", "INSERT", "UPDATE", "DELETE"})
    return frozenset(connection.scalars(_PRIVILEGES, {"name": table.name, "schema": table.schema}))


def unreadable(connection: Connection, area: str, what: str, *tables: Table) -> list[DatabaseFinding]:
    """The finding that ``what`` can't be seen, where the role may not read one of ``tables``; nothing, where it may."""
    closed = [table.fullname for table in tables if "SELECT" not in privileges(connection, table)]
    if not closed:
        return []
    return [DatabaseFinding(area, "advice", f"{what}: not seen, this role has no SELECT on {' and '.join(closed)}")]
