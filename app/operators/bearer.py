"""Authorization of operators by a bearer token (RFC 6750). Wrong tokens are counted, and logged within bounds."""

import hmac
import logging
from collections.abc import Callable
from time import monotonic

from oncegate.middleware.http.asgi import Scope

log = logging.getLogger("oncegate.operators")

MOST_LINES = 10
"""Refusals that are logged within `WINDOW` seconds: a flood of them must not fill a disk."""
WINDOW = 60.0


class Bearer:
    """The operators' ``token``. ``count`` is called for each wrong one."""

    def __init__(self, token: str, count: Callable[[], None] = lambda: None) -> None:
        self._token = token.encode("utf-8", "surrogateescape")
        self._count = count
        self._since = 0.0
        self._lines = 0

    def is_brought(self, scope: Scope) -> bool:
        """Whether the request of ``scope`` carries the token, in its only Authorization header."""
        lines = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, given = lines[0].partition(b" ") if len(lines) == 1 else (b"", b"", b"")
        # Always compared, so that the time taken reveals nothing.
        same = hmac.compare_digest(given.strip(), self._token)
        return same and scheme.lower() == b"bearer"

    def refuse(self, scope: Scope) -> None:
        """Count and log a request without the token: where it came from, never what it carried."""
        self._count()
        now = monotonic()
        if now - self._since >= WINDOW:
            if self._lines > MOST_LINES:
                log.warning("%d more log-ins of operators were refused", self._lines - MOST_LINES)
            self._since, self._lines = now, 0
        self._lines += 1
        if self._lines <= MOST_LINES:
            peer = scope.get("client")
            log.warning(
                "a log-in of an operator was refused: wrong or no token, from %s", peer[0] if peer else "a socket"
            )
