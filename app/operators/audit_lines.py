"""The operators' last changes, kept in the cache for a month, where each gateway and each command line sees them.

The log ``oncegate.audit`` has them all (`oncegate.app.operators.audit`). Here is what can be listed: one command to the cache
when an operator changes something, none with a request.
"""

import logging
from typing import Any, Final

import orjson

from oncegate.app.operators.audit import Author
from oncegate.app.turns import in_pieces
from oncegate.cache.errors import CacheError
from oncegate.cache.store import KeepsAudit
from oncegate.middleware.admission.request import gateway_id
from oncegate.middleware.outcome.instants import instant
from oncegate.middleware.outcome.responses import now_ms

log = logging.getLogger("oncegate.operators")

MOST_LINES: Final = 1000
"""Lines that are kept of a namespace."""
KEPT_MS: Final = 30 * 24 * 3600 * 1000
"""For how long they are, after the last one."""
_MOST_TEXT: Final = 200
_AT_ONCE: Final = 50
"""Lines that are read before others have the loop."""


class AuditLines:
    """The audit lines of one ``namespace``."""

    def __init__(self, cache: KeepsAudit, namespace: str) -> None:
        self._cache = cache
        self._namespace = namespace

    async def keep(self, author: Author, what: str, done: str) -> None:
        """Keep that ``what`` was ``done`` to by the ``author``. Where the cache can't, the log says so: it is done already."""
        line = {
            "at": now_ms(),
            "operator": author.name,
            "what": what[:_MOST_TEXT],
            "done": done[:_MOST_TEXT],
            "reason": author.reason,
            "process": gateway_id(),
        }
        try:
            await self._cache.keep_audit_line(self._namespace, orjson.dumps(line), most=MOST_LINES, ttl_ms=KEPT_MS)
        except CacheError as error:
            log.warning("an audit line was not kept, and is in this log alone: %s", error)

    async def report(self, author: Author, what: str, done: str) -> None:
        """The same, with its line of the log."""
        author.report(what, done)
        await self.keep(author, what, done)

    async def listing(self, *, limit: int = 100, operator: str | None = None) -> dict[str, Any]:
        """The last ``limit`` ``lines``, of one ``operator`` or of all, the newest first, and how many are ``kept``.

        Raises `oncegate.cache.errors.CacheError`.
        """
        read = map(_read, await self._cache.audit_lines(self._namespace))
        kept = [line async for line in in_pieces(read, _AT_ONCE) if line is not None]
        wanted = [line for line in kept if operator in (None, line["operator"])]
        return {"lines": wanted[:limit], "kept": len(kept)}


async def report(audit: AuditLines | None, author: Author, what: str, done: str) -> None:
    """Write the line about ``what`` was ``done`` to; it is kept too, where the cache keeps such lines."""
    if audit is None:
        author.report(what, done)
    else:
        await audit.report(author, what, done)


_TEXTS: Final = ("operator", "what", "done", "reason", "process")


def _read(line: bytes) -> dict[str, Any] | None:
    """A line as it is shown; ``None`` for what is none, whoever has written it."""
    try:
        members = orjson.loads(line)
        at = members["at"]
        return {"at": instant(at if type(at) is int else 0)} | {name: str(members[name]) for name in _TEXTS}
    except (orjson.JSONDecodeError, LookupError, TypeError):
        return None
