"""Authorization of operators by bearer tokens (RFC 6750). Wrong tokens are counted, and logged within bounds."""

import hmac
import logging
from collections.abc import Callable, Sequence
from time import monotonic

from oncegate.app.settings.admin_tokens import AdminToken, digest
from oncegate.middleware.http.asgi import Scope

log = logging.getLogger("oncegate.operators")

MOST_LINES = 10
"""Refusals that are logged within `WINDOW` seconds: a flood of them must not fill a disk."""
WINDOW = 60.0


class Bearer:
    """The operators' ``tokens``. ``count`` is called for each wrong one."""

    def __init__(self, tokens: Sequence[AdminToken], count: Callable[[], None] = lambda: None) -> None:
        self._tokens = tuple(tokens)
        self._count = count
        self._since = 0.0
        self._lines = 0

    def brought(self, scope: Scope) -> AdminToken | None:
        """The token of ours that a request carries, in its only Authorization header."""
        given = _bearer_token(scope)
        known = self.known(given or b"")
        return None if given is None else known

    def known(self, token: bytes) -> AdminToken | None:
        """The one of ours that ``token`` is."""
        made = digest(token)
        # Compared with each of them, so that the time taken reveals nothing.
        same = [each for each in self._tokens if hmac.compare_digest(made, each.digest)]
        return same[0] if same else None

    def refuse_guess(self, scope: Scope) -> None:
        """`refuse` a request, where it carries a bearer token: it shows nothing, to a caller or to an operator."""
        if _bearer_token(scope) is not None:
            self.refuse(scope)

    def refuse(self, scope: Scope) -> None:
        """Count and log a request without a token: where it came from, never what it carried."""
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


def _bearer_token(scope: Scope) -> bytes | None:
    """The token in a request's only Authorization header."""
    lines = [value for name, value in scope["headers"] if name == b"authorization"]
    scheme, _, given = lines[0].partition(b" ") if len(lines) == 1 else (b"", b"", b"")
    return given.strip() if scheme.lower() == b"bearer" else None
