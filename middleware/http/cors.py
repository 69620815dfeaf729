"""Cross-origin rules (CORS): the headers to allow and expose, so that scripts in browsers can send keys and read the answers.

The CORS middleware goes around `IdempotencyMiddleware` (in Starlette: is added after it)::

    app.add_middleware(IdempotencyMiddleware, cache=cache)
    app.add_middleware(CORSMiddleware, allow_origins=[...], allow_headers=REQUEST_HEADERS, expose_headers=EXPOSED_HEADERS)

The other way round, a problem would have no CORS headers, so that a script would see a network error, and the headers for one
origin would be stored, and given to another one. For what the gateway answers itself, `CrossOrigin` does the same.
"""

from collections.abc import Iterable, Sequence

from oncegate.middleware.rules.headers.added_headers import ADDED_HEADERS

REQUEST_HEADERS = (
    "Idempotency-Key",
    "Idempotency-Raise-On-Duplicate",
    "Prefer",
    "Expected-Version",
    "If-Match",
    "If-None-Match",
    "X-Request-Id",
)
"""Request headers that mean something here: for ``allow_headers``, beside the app's own."""

EXPOSED_HEADERS = tuple(each.name for each in ADDED_HEADERS if each.is_exposed)
"""Response headers that are added here: for ``expose_headers``, beside the app's own."""

Headers = list[tuple[bytes, bytes]]

_ALLOW_ORIGIN = b"access-control-allow-origin"
_ALLOW_CREDENTIALS = b"access-control-allow-credentials"
_FOR_ONE_ORIGIN = frozenset({_ALLOW_ORIGIN, _ALLOW_CREDENTIALS})
_VARY = (b"vary", b"origin")
_ANY = [(_ALLOW_ORIGIN, b"*")]


class CrossOrigin:
    """Whose scripts may read what is answered here: ``origins``, or any where one of them is ``*``.

    ``exposed`` are the response headers that they may read; with ``credentials``, answers to requests with cookies too,
    which browsers want an origin named for (Fetch section 3.3.5).
    """

    def __init__(self, origins: Iterable[str], *, exposed: Iterable[str] = EXPOSED_HEADERS, credentials: bool) -> None:
        self._origins = frozenset(origin.encode() for origin in origins)
        self._any = b"*" in self._origins
        self._same: Headers = [(b"access-control-expose-headers", ", ".join(exposed).encode())]
        if credentials:
            self._same.append((_ALLOW_CREDENTIALS, b"true"))

    def headers(self, request: Iterable[tuple[bytes, bytes]]) -> Headers:
        """The headers to add to an answer to a request with these headers."""
        origin = next((value for name, value in request if name == b"origin"), None)
        if origin is None:
            return []
        if self._any:
            return [*_ANY, *self._same]
        if origin not in self._origins:
            return [_VARY]
        return [(_ALLOW_ORIGIN, origin), *self._same, _VARY]

    def replayed(self, request: Iterable[tuple[bytes, bytes]], stored: Headers) -> Headers:
        """The headers of a replay: what was stored is for the origin that came first, and perhaps for none."""
        own = self.headers(request)
        if len(own) < 2:  # another origin would get another answer: caches in between must know
            return stored if _VARY in stored else stored + own
        return [line for line in stored if line[0] not in _FOR_ONE_ORIGIN] + own

    def preflight(self, request: Iterable[tuple[bytes, bytes]], *, methods: str, allowed: Sequence[str]) -> Headers:
        """The headers of the answer to a preflight: ``methods`` and request headers that are ``allowed``."""
        own = self.headers(request)
        if len(own) < 2:
            return own
        names = ", ".join(allowed).encode()
        return [*own, (b"access-control-allow-methods", methods.encode()), (b"access-control-allow-headers", names)]
