"""Operators are known by a bearer token (RFC 6750)."""

import hmac

from oncegate.middleware.asgi import Scope


def is_bearer(scope: Scope, token: bytes) -> bool:
    """Whether the request of ``scope`` brings ``token``, in its only Authorization header."""
    lines = [value for name, value in scope["headers"] if name == b"authorization"]
    scheme, _, given = lines[0].partition(b" ") if len(lines) == 1 else (b"", b"", b"")
    # Always compared, so that the time taken tells nothing.
    same = hmac.compare_digest(given.strip(), token)
    return same and scheme.lower() == b"bearer"
