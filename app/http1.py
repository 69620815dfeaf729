"""The rules of HTTP/1.1 that a gateway keeps towards its upstream: which request head goes out for an ASGI scope. No I/O.

Framing is never copied from one side to the other. It is read, judged, dropped with the other hop-by-hop fields, and
written anew from what was understood: two servers that frame the same bytes differently are what request smuggling is.

A field that ``Connection`` names is dropped (RFC 9110 section 7.6.1), save those in `END_TO_END`, which carry a message's
meaning: else any client could have ``Authorization`` or the idempotency key taken away behind the checks that read it.
"""

import ipaddress
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from itertools import product
from typing import NamedTuple
from urllib.parse import quote

from oncegate.middleware.http import Scope

HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"}
    # Credentials for a proxy, and a proxy's challenge: meant for the next hop alone, and we ask for none (section 11.7).
    | {b"proxy-authenticate", b"proxy-authorization"}
)
END_TO_END = frozenset(
    {b"accept", b"authorization", b"cache-control", b"content-encoding", b"content-length", b"content-range"}
    | {b"content-type", b"cookie", b"date", b"etag", b"host", b"idempotency-attempt", b"idempotency-key", b"if-match"}
    | {b"if-none-match", b"location", b"origin", b"range", b"retry-after", b"set-cookie", b"vary", b"via"}
    | {b"www-authenticate", b"x-api-key"}
)
"""Fields that ``Connection`` can't take away, whatever it names."""
VIA = (b"via", b"1.1 oncegate")
"""Added to every request and every response that passes (RFC 9110 section 7.6.3)."""


def _spellings(names: Iterable[str]) -> frozenset[bytes]:
    """Each name with every mix of ``-`` and ``_``: CGI and WSGI servers read all of them as one variable."""
    mixes = (product(*("-_" if char == "-" else char for char in name)) for name in names)
    return frozenset("".join(mix).encode() for group in mixes for mix in group)


_SAID_BY_PROXIES = _spellings(
    ["forwarded", "x-real-ip"]
    + ["x-forwarded-" + part for part in ("for", "proto", "host", "port", "prefix", "scheme", "server", "ssl", "by")]
)
"""What a server behind a proxy believes of it: from a peer that is not trusted, none of it passes."""
_AMBIGUOUS = _spellings(["content-length", "transfer-encoding", "idempotency-key", "idempotency-attempt"])
"""For the same reason none of these passes in another spelling: it would be read beside the one that was judged."""
# Read here and written anew, or answered for by the server in front of us (Expect: 100-continue).
_SPECIAL = HOP_BY_HOP | _SAID_BY_PROXIES | {b"content-length", b"expect", b"host", b"http2-settings"}
_SPECIAL |= _AMBIGUOUS - {b"idempotency-key", b"idempotency-attempt"}
_LENGTH_DIGITS = 18
_NOTHING: frozenset[bytes] = frozenset()
_USUAL_OPTIONS = {option: frozenset({option.lower()}) for option in (b"keep-alive", b"Keep-Alive", b"close")}
_ONCE = {
    b"host": "more than one Host",
    b"content-length": "Content-Length is not one number",
    b"transfer-encoding": "the body's framing is ambiguous",
}
_VIA_LINE = b"%b: %b\r\n" % VIA
_METHOD = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_UNSAFE_PATH = re.compile(rb"[\x00-\x20\x7f#?]")
_UNSAFE_QUERY = re.compile(rb"[\x00-\x20\x7f#]")
_PATH_SAFE = "/!$&'()*+,;=:@~-._%"


class RequestRefused(Exception):
    """A request that can't be forwarded without guessing: answer ``status``; nothing of it goes upstream."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class RequestHead(NamedTuple):
    """A request's line and end-to-end fields as bytes (every line with its CRLF), and how its client framed the body.

    ``length`` is the client's ``Content-Length``; ``chunked`` says that it sent chunks; neither: no body was announced.
    """

    lines: bytes
    length: int | None
    chunked: bool
    is_head: bool

    def framed(self, body: bytes, more: bool) -> bytes:
        """The whole head for a body that begins with ``body``; ``more``: it is not all of it. May raise `RequestRefused`."""
        if self.length is not None and (self.length < len(body) or (not more and self.length != len(body))):
            raise RequestRefused(400, "the body is not as long as its Content-Length says")
        if more:
            if self.length is None:
                return self.lines + b"transfer-encoding: chunked\r\n\r\n"
            return self.lines + b"content-length: %d\r\n\r\n" % self.length
        if body or self.chunked or self.length is not None:
            return self.lines + b"content-length: %d\r\n\r\n" % len(body)
        return self.lines + b"\r\n"


class TrustedPeers:
    """The peers whose ``X-Forwarded-*`` are believed: addresses and networks (CIDR). A malformed one raises `ValueError`."""

    def __init__(self, networks: Sequence[str]) -> None:
        self._networks = [ipaddress.ip_network(network, strict=False) for network in networks]
        self.trusts: Callable[[str], bool] = lru_cache(maxsize=4096)(self._is_inside)

    def _is_inside(self, host: str) -> bool:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None) or address  # ::ffff:10.0.0.1, on a dual-stack socket
        return any(mapped in network for network in self._networks)


class RequestWriter:
    """Turns ASGI scopes into the request heads that go to one upstream.

    ``base`` goes before every path; ``authority`` stands in for a missing ``Host``; ``end_to_end`` adds names that
    ``Connection`` can't take away, such as a configured idempotency header.
    """

    def __init__(self, base: bytes, authority: bytes, trusted: TrustedPeers, end_to_end: Collection[str] = ()) -> None:
        self._base = base
        self._authority = authority
        self._trusted = trusted
        read = {name.lower() for name in end_to_end}
        self._stays = END_TO_END | {name.encode("latin-1") for name in read} | HOP_BY_HOP  # the latter are gone anyway
        # `X_Api_Key` counts for nothing here, but is `X-Api-Key` to a CGI or WSGI upstream: it would name another caller there.
        self._special = _SPECIAL | (_spellings(read) - {name.encode("latin-1") for name in read})

    def head(self, scope: Scope) -> RequestHead:
        """The head for ``scope``. Raises `RequestRefused` where forwarding would mean to guess what the client meant."""
        method: str = scope["method"]
        lines = [b"", b""]  # the request line and Host, which come first
        special: list[tuple[bytes, bytes]] = []
        special_names = self._special
        for field in scope["headers"]:
            if field[0] in special_names:
                special.append(field)
            else:
                lines.append(b"%b: %b\r\n" % field)
        named, host, length, chunked = _judge(special)
        if named and (dropped := named - self._stays):
            lines = lines[:2] + [line for line in lines[2:] if line.partition(b":")[0] not in dropped]
        if host is None:
            host = self._authority
        lines[0] = b"%b %b HTTP/1.1\r\n" % (_method(method), self._target(scope))
        lines[1] = b"host: %b\r\n" % host
        self._add_forwarded(lines, scope, host, special, named)
        lines.append(_VIA_LINE)
        whole = b"".join(lines)
        # Every line brought one CRLF of its own: any other would begin a field, or a request, that nobody has judged.
        # (`find`, since `in` takes what it looks for for a number first, and makes an exception of it.)
        if whole.count(b"\n") != len(lines) or whole.count(b"\r") != len(lines) or whole.find(b"\0") >= 0:
            raise RequestRefused(400, "a header field holds a line break or a NUL")
        return RequestHead(whole, length, chunked, method == "HEAD")

    def _target(self, scope: Scope) -> bytes:
        """The request target (RFC 9112 section 3.2.1), path and query as they came."""
        path: bytes = scope.get("raw_path") or quote(scope["path"], safe=_PATH_SAFE).encode("ascii")
        query: bytes = scope.get("query_string") or b""
        if _UNSAFE_PATH.search(path) or _UNSAFE_QUERY.search(query):
            raise RequestRefused(400, "the request target holds a character that can't be forwarded")
        if path[:1] == b"/":
            path = self._base + path
        elif path != b"*" or scope["method"] != "OPTIONS":
            raise RequestRefused(400, "the request target is not a path")
        return b"%b?%b" % (path, query) if query else path

    def _add_forwarded(
        self, lines: list[bytes], scope: Scope, host: bytes, special: list[tuple[bytes, bytes]], named: frozenset[bytes]
    ) -> None:
        """Says who asked: a trusted proxy's word is kept and added to, anybody else's is replaced."""
        client = scope.get("client")
        peer: str = client[0] if client and client[0] else "unknown"
        scheme: str = scope.get("scheme", "http")
        if not self._trusted.trusts(peer):
            lines += _forwarded(peer, scheme)
            lines.append(b"x-forwarded-host: %b\r\n" % host)
            return
        said: set[bytes] = set()
        path: list[bytes] = []
        for name, value in special:
            if name == b"x-forwarded-for":
                path.append(value)
            elif name in _SAID_BY_PROXIES and name not in named:
                said.add(name)
                lines.append(b"%b: %b\r\n" % (name, value))
        path.append(peer.encode("latin-1"))
        lines.append(b"x-forwarded-for: %b\r\n" % b", ".join(path))
        if b"x-forwarded-proto" not in said:
            lines.append(b"x-forwarded-proto: %b\r\n" % scheme.encode("latin-1"))
        if b"x-forwarded-host" not in said:
            lines.append(b"x-forwarded-host: %b\r\n" % host)


@lru_cache(maxsize=4096)
def _forwarded(peer: str, scheme: str) -> tuple[bytes, bytes]:
    """What is said of a peer that is not trusted, as lines."""
    for_line = b"x-forwarded-for: %b\r\n" % peer.encode("latin-1")
    return for_line, b"x-forwarded-proto: %b\r\n" % scheme.encode("latin-1")


@lru_cache(maxsize=64)
def _method(method: str) -> bytes:
    if _METHOD.fullmatch(method) is None:
        raise RequestRefused(400, "the method is not a token")
    if method == "CONNECT":
        raise RequestRefused(501, "CONNECT is not forwarded")
    return method.encode("ascii")


def connection_options(value: bytes) -> frozenset[bytes]:
    """The options of a ``Connection`` field's value, lower-case."""
    usual = _USUAL_OPTIONS.get(value)
    return usual or frozenset([option.strip(b" \t") for option in value.lower().split(b",")])


def _judge(special: list[tuple[bytes, bytes]]) -> tuple[frozenset[bytes], bytes | None, int | None, bool]:
    """Reads the fields that decide: what ``Connection`` names, the host, the body's length, whether it is chunked."""
    named = _NOTHING
    found: dict[bytes, bytes] = {}
    for name, value in special:
        if name == b"connection":
            named |= connection_options(value)
        elif name in found and name in _ONCE:
            raise RequestRefused(400, _ONCE[name])
        else:
            found[name] = value
    host, length, coding = found.get(b"host"), found.get(b"content-length"), found.get(b"transfer-encoding")
    if coding is None:
        return named, host, None if length is None else _number(length), False
    if length is not None:
        raise RequestRefused(400, _ONCE[b"transfer-encoding"])
    if coding.strip(b" \t").lower() != b"chunked":
        raise RequestRefused(501, "a transfer coding that is not understood")
    return named, host, None, True


def _number(value: bytes) -> int:
    """What ``Content-Length`` says. Raises `RequestRefused` unless it is one plain number."""
    text = value.strip(b" \t")
    if not text.isdigit() or len(text) > _LENGTH_DIGITS:
        raise RequestRefused(400, "Content-Length is not one number")
    return int(text)
