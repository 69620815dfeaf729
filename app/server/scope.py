"""The ASGI scope of a request, of its target and its connection."""
# Compiled: docs/decisions/0012-compiled.md

from typing import Any, Final

import httptools

from oncegate.app.http1 import EMPTY_QUERY
from oncegate.app.server.head import unquoted

# A number: given bytes, ``in`` first tries them as a number, and the error that this raises costs more than the search.
_HASH: Final = 35
_ASGI: Final = {"version": "3.0", "spec_version": "2.3"}
METHODS: Final = {method.encode(): method for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")}
"""Those that most requests have, as ASGI spells them."""


class RequestTarget:
    """A method and a target, as scopes have them. Raises `TargetRefused`, or what httptools does of a target that is none."""

    __slots__ = ("has_empty_query", "method", "path", "query", "raw_path")

    def __init__(self, method: bytes, url: bytes) -> None:
        if url[:1] == b"/" and _HASH not in url:
            raw_path, mark, query = url.partition(b"?")
        else:
            parsed: Any = httptools.parse_url(url)  # the stubs wrongly declare that there is always a query
            raw_path, query = parsed.path, b"" if parsed.query is None else parsed.query
            mark = b"?" if b"?" in url.partition(b"#")[0] else b""
        path = raw_path.decode("ascii")
        self.method = METHODS.get(method) or method.decode("ascii")
        self.raw_path = raw_path
        self.path = unquoted(raw_path) if "%" in path else path
        self.query = query
        self.has_empty_query = bool(mark) and not query


def scope_of(
    target: RequestTarget, version: str, headers: list[tuple[bytes, bytes]], shared: dict[str, Any]
) -> dict[str, Any]:
    """A request's ASGI scope. ``shared`` is what the scopes of a connection have in common (`shared_scope`)."""
    scope = shared.copy()  # in one piece, which is cheaper than member by member
    if version != "1.1":
        scope["http_version"] = version
    scope["method"] = target.method
    scope["path"] = target.path
    scope["raw_path"] = target.raw_path
    scope["query_string"] = target.query
    scope["headers"] = headers
    if target.has_empty_query:
        scope[EMPTY_QUERY] = True
    return scope


def shared_scope(server: tuple[str, int] | None, client: tuple[str, int] | None, scheme: str) -> dict[str, Any]:
    """The part of the ASGI scope that all requests of one connection share, with room for the rest."""
    own = dict.fromkeys(("method", "path", "raw_path", "query_string", "headers"))
    return {
        "type": "http",
        "asgi": _ASGI,
        "root_path": "",
        "server": server,
        "client": client,
        "scheme": scheme,
        "http_version": "1.1",
        **own,
    }
