"""An operator's resolution, written and reported: one road for the API and for the console."""

from oncegate.app.operators.audit import Author, resolved
from oncegate.app.operators.audit_lines import AuditLines
from oncegate.app.operators.records.records import Records
from oncegate.cache.transitions import Resolution, ResolveRequest


async def resolve_and_report(
    records: Records, audit: AuditLines | None, identifier: str, request: ResolveRequest, author: Author
) -> Resolution:
    """Write a resolution, and the audit line about it where it was written.

    Raises `oncegate.app.operators.records.records.NotARecord`, `oncegate.cache.errors.CacheError`.
    """
    done = await records.resolve(identifier, request, author)
    if done is Resolution.RESOLVED:
        await report(audit, author, f"record {identifier}", resolved(request))
    return done


async def report(audit: AuditLines | None, author: Author, what: str, done: str) -> None:
    """Write the line about ``what`` was ``done`` to; it is kept too, where the cache keeps such lines."""
    if audit is None:
        author.report(what, done)
    else:
        await audit.report(author, what, done)
