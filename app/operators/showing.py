"""Stored responses, shown to an operator: one road for the API, the console and the command line.

It may hold what is secret, so each look is a line of the audit. All else that there is to know of a record, a command or a
message is shown without one, and without what was stored.
"""

from typing import TYPE_CHECKING, Any

from oncegate.app.operators.audit import Author, printable
from oncegate.app.operators.audit_lines import AuditLines, report
from oncegate.app.operators.database.lines import BODY_SHOWN, message_line
from oncegate.app.operators.records.records import Records

if TYPE_CHECKING:  # these load redis-py's client, and SQLAlchemy
    from oncegate.app.operators.database.database import OperatorsDatabase
    from oncegate.app.operators.letters.dead_letters import Commands


async def whole_record(
    records: Records, audit: AuditLines | None, identifier: str, author: Author
) -> dict[str, Any] | None:
    """All that is known of one record, its stored response too; ``None`` where there is no such record.

    Raises `oncegate.app.operators.records.records.NotARecord`, `oncegate.cache.errors.CacheError`.
    """
    shown = await records.show(identifier, response=True)
    if shown is not None and shown["response"] is not None:
        await report_response(audit, author, identifier)
    return shown


async def report_response(audit: AuditLines | None, author: Author, identifier: str) -> None:
    """Report that a record's stored response, or a command's result, is shown."""
    await report(audit, author, f"record {identifier}", "its stored response shown")


async def whole_command(
    commands: "Commands", audit: AuditLines | None, identifier: str, author: Author
) -> dict[str, Any] | None:
    """All that is known of a command, with the key, target and payload of each of its dead letters; ``None`` where nothing is.

    Raises `oncegate.app.operators.letters.dead_letters.NotAnId`, `oncegate.cache.errors.CacheError`.
    """
    shown = await commands.show(identifier, body=True)
    for letter in shown["dead_letters"] if shown is not None else ():
        which = f"dead letter {letter['id']} of command {printable(letter['command'] or 'not known')}"
        await report(audit, author, which, "its key and payload shown")
    return shown


async def whole_message(
    database: "OperatorsDatabase", audit: AuditLines | None, number: int, author: Author
) -> dict[str, Any] | None:
    """A message of an outbox, with its key, its headers and the begin of its body; ``None`` where it is not there.

    Raises what `oncegate.app.operators.database.database.OperatorsDatabase.message` does.
    """
    shown = await database.message(number, body=True)
    if shown is not None:
        await report(audit, author, printable(f"message {message_line(shown)}"), BODY_SHOWN)
    return shown
