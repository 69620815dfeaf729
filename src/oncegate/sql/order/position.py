"""Sets an aggregate's last applied number without a message: for a consumer that joins later, and where one never comes."""

from collections.abc import Sequence

from sqlalchemy import Connection, Table, func
from sqlalchemy.dialects import postgresql, sqlite


def set_to(connection: Connection, table: Table, names: Sequence[str], aggregate: bytes, sequence: int) -> bool:
    """Whether the number under all of ``names`` is ``sequence`` now, and was lower. A higher one stays."""
    now = func.statement_timestamp() if connection.dialect.name == "postgresql" else func.current_timestamp()
    row = {"aggregate": aggregate, "sequence": sequence, "parked": 0}
    rows = [dict(row, consumer=name, applied_at=now) for name in sorted(names)]
    insert = (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(table).values(rows)
    given = insert.excluded
    statement = insert.on_conflict_do_update(
        index_elements=[table.c.consumer, table.c.aggregate],
        set_={
            "applied_at": given.applied_at, "sequence": given.sequence, "message": None, "fingerprint": None, "result": None,
        },
        where=table.c.sequence < given.sequence,
    ).returning(table.c.consumer)  # fmt: skip
    return len(connection.execute(statement).all()) == len(names)
