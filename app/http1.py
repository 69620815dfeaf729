"""Builds the HTTP/1.1 request head that goes upstream for an ASGI scope, by the rules for a gateway. No I/O.

Framing is never copied from one side to the other. It is read, judged, dropped with the other hop-by-hop fields, and
written anew from what was understood: two servers that frame the same bytes differently are what request smuggling is.

A field that ``Connection`` names is dropped (RFC 9110 section 7.6.1), save those in `END_TO_END`, which carry a message's
meaning: else any client could have ``Authorization`` or the idempotency key taken away behind the checks that read it.
"""
# Compiled: docs/decisions/0012-compiled.md

import ipaddress
import re
from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any, Final
from urllib.parse import quote

from oncegate.app.field_lines import line_of
from oncegate.app.last_head import EMPTY_QUERY as EMPTY_QUERY  # scopes have it
from oncegate.app.last_head import LastHead
from oncegate.cache.fields import FIELD_NAME, HOP_BY_HOP, IN_LOWER_CASE, SHORT_NUMBERS
from oncegate.middleware.http.asgi import PATH_SAFE, Scope

END_TO_END: Final = frozenset(
    {b"accept", b"authorization", b"cache-control", b"content-encoding", b"content-length", b"content-range"}
    | {b"content-type", b"cookie", b"date", b"etag", b"host", b"idempotency-attempt", b"idempotency-key", b"if-match"}
    | {b"if-none-match", b"location", b"origin", b"range", b"retry-after", b"set-cookie", b"vary", b"via"}
    | {b"www-authenticate", b"x-api-key"}
)
"""Fields that ``Connection`` can't take away, whatever it names."""
VIA: Final = (b"via", b"1.1 oncegate")
"""Added to every request and every response that passes (RFC 9110 section 7.6.3), unless a setting says otherwise."""


def _spellings(names: Iterable[str]) -> frozenset[bytes]:
    """Each name with every mix of ``-`` and ``_``: CGI and WSGI servers read all of them as one variable."""
    mixes = (product(*("-_" if char == "-" else char for char in name)) for name in names)
    return frozenset("".join(mix).encode() for group in mixes for mix in group)


_SET_BY_PROXIES: Final = _spellings(
    ["forwarded", "x-real-ip"]
    + ["x-forwarded-" + part for part in ("for", "proto", "host", "port", "prefix", "scheme", "server", "ssl", "by")]
)
"""Fields that a server trusts a proxy to set: dropped from a peer that is not trusted."""
_FORWARDED: Final = b"forwarded"
_is_set_by_proxies: Final = re.compile(rb"x[^0-9a-z:]forwarded(?![0-9a-z])").match
"""So is any other field whose name begins like that: ``X-Forwarded-User``, ``-Client-Cert``, ``-Uri``."""
_AMBIGUOUS: Final = _spellings(["content-length", "transfer-encoding", "idempotency-key", "idempotency-attempt"])
"""For the same reason none of these passes in another spelling: it would be read beside the one that was judged."""
# Read here and written anew, or answered for by the server in front of us (Expect: 100-continue).
_SPECIAL: Final = (
    HOP_BY_HOP
    | _SET_BY_PROXIES
    | {b"content-length", b"expect", b"host", b"http2-settings"}
    | (_AMBIGUOUS - {b"idempotency-key", b"idempotency-attempt"})
)
_LENGTH_DIGITS: Final = 18
_MOST_HOPS_BYTES: Final = 1000
"""Of a list of proxies, the last ones: each takes its time."""
_NOTHING: Final[frozenset[bytes]] = frozenset()
USUAL_OPTIONS: Final = {option: frozenset({option.lower()}) for option in (b"keep-alive", b"Keep-Alive", b"close")}
# Numbers: given bytes, ``in`` first tries them as a number, and the error that this raises costs more than the search.
_LF: Final = 10
_CR: Final = 13
_NUL: Final = 0
_METHOD: Final = re.compile(FIELD_NAME)
# For ``translate``, which is the cheapest look at each octet: they change those that don't fit.
_QUERY: Final = bytes(octet if octet > 0x20 and octet not in b"#\x7f" else not octet for octet in range(256))
_PATH: Final = _QUERY.replace(b"?", b"\0")
_BEGINNINGS: Final = {
    method: f"{method} ".encode() for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
}
"""Of the request lines of most requests."""
_MOST_PEERS: Final = 4096
_WRONG_LENGTH: Final = "the body is not as long as its Content-Length says"


class RequestRefused(Exception):
    """A request that can't be forwarded without guessing: answer ``status``; nothing of it goes upstream."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(slots=True)  # not frozen, which takes far longer to make: every request does. Nothing changes one.
class RequestHead:
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
            raise RequestRefused(400, _WRONG_LENGTH)
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
        self._known: dict[str, dict[str, bytes]] = {"http": {}, "https": {}}

    def lines_for(self, host: str, scheme: str) -> bytes:
        """The forwarding fields for a peer that is not trusted, until the value of the last one, which is the request's host.

        Empty: it is trusted.
        """
        known = self._known.get(scheme)
        if known is None:  # no scheme of HTTP
            return self._lines_for(host, scheme)
        lines = known.get(host)
        if lines is None:
            if len(known) >= _MOST_PEERS:
                known.clear()
            known[host] = lines = self._lines_for(host, scheme)
        return lines

    def _lines_for(self, host: str, scheme: str) -> bytes:
        if self._is_inside(host):
            return b""
        lines = b"x-forwarded-for: " + host.encode("latin-1"), b"x-forwarded-proto: " + scheme.encode("latin-1")
        if any(octet in line for line in lines for octet in (_LF, _CR, _NUL)):
            raise RequestRefused(400, "the client's address holds a line break or a NUL")
        return b"\r\n".join((*lines, b"x-forwarded-host: "))

    def client_of(self, peer: str, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """The address of the client behind ``peer``: of those that trusted proxies name, the last one that is none of theirs."""
        if not self._networks or not self._is_inside(peer):
            return peer
        client = peer
        named = [value for name, value in headers if name == b"x-forwarded-for"]
        for hop in reversed(b",".join(named)[-_MOST_HOPS_BYTES:].decode("latin-1").split(",")):
            try:
                client = str(ipaddress.ip_address(hop.strip()))
            except ValueError:
                break
            if not self._is_inside(client):
                break
        return client

    def scheme_of(self, peer: str, scheme: str, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """The scheme of the client of ``peer``: what a trusted proxy says it is, else ``scheme``, which the peer speaks."""
        if not self._networks or not self._is_inside(peer):
            return scheme
        named = [value for name, value in headers if name == b"x-forwarded-proto"]
        return named[-1].decode("latin-1").rpartition(",")[2].strip().lower() if named else scheme

    def _is_inside(self, host: str) -> bool:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None) or address  # ::ffff:10.0.0.1, on a dual-stack socket
        return any(mapped in network for network in self._networks)


class RequestWriter:
    """A writer of the request heads that go to one upstream, made of ASGI scopes.

    ``base`` goes before every path; ``authority`` stands in for a missing ``Host``; ``end_to_end`` adds names that
    ``Connection`` can't take away, such as a configured idempotency header. ``via``: our own is added.
    """

    def __init__(
        self,
        base: bytes,
        authority: bytes,
        trusted: TrustedPeers,
        end_to_end: Collection[str] = (),
        *,
        via: bool = True,
    ) -> None:
        self._via = b"\r\nvia: " + VIA[1] if via else b""
        self._base = base
        self._authority = authority
        self._trusted = trusted
        read = {name.lower() for name in end_to_end}
        self._stays = END_TO_END | {name.encode("latin-1") for name in read} | HOP_BY_HOP  # the latter are gone anyway
        # `X_Api_Key` counts for nothing here, but is `X-Api-Key` to a CGI or WSGI upstream: it would name another caller there.
        self._special = _SPECIAL | (_spellings(read) - {name.encode("latin-1") for name in read})
        self._usual = frozenset(IN_LOWER_CASE.values()) - self._special

    def head(self, scope: Scope) -> RequestHead:
        """The head for ``scope``. Raises `RequestRefused` where forwarding would mean to guess what the client meant."""
        known = scope if isinstance(scope, dict) else dict(scope)
        lines, length, chunked = self._lines(known, list(scope["headers"]))
        lines.append(b"")
        return RequestHead(b"\r\n".join(lines), length, chunked, scope["method"] == "HEAD")

    def whole(
        self, scope: dict[str, Any], headers: list[tuple[bytes, bytes]], body: bytes, last: LastHead | None = None
    ) -> bytes:
        """The whole head for ``scope`` with ``headers`` in place of its own, and all of its ``body``. Raises as `head` does.

        ``last`` is the one before of its client's connection, whose place it takes.
        """
        if last is not None and last.is_like(self, scope, headers):
            if not last.has_target(scope):
                last.aim(scope, self._request_line(scope))
            head = last.again(headers, len(body))
            if head:
                return head
        lines, length, chunked = self._lines(scope, headers)
        if length is not None and length != len(body):
            raise RequestRefused(400, _WRONG_LENGTH)
        if body or chunked or length is not None:
            lines.append(b"content-length: %d\r\n\r\n" % len(body))
        else:
            lines.append(b"\r\n")
        return b"\r\n".join(lines) if last is None else last.keep(self, scope, headers, lines, len(body))

    def _lines(self, scope: dict[str, Any], headers: list[tuple[bytes, bytes]]) -> tuple[list[bytes], int | None, bool]:
        """The lines of a head without its framing; the length that its client announced; whether that sent chunks."""
        lines = [b"", b""]  # the request line and Host, which come first
        host = length = None
        special: list[tuple[bytes, bytes]] = []
        usual_names, special_names = self._usual, self._special
        claims = False
        for field in headers:
            name = field[0]
            if name in usual_names:
                lines.append(line_of(field))
            elif name not in special_names:
                lines.append(line_of(field))
                claims = claims or name.find(_FORWARDED) >= 0
            elif name == b"host" and host is None:
                host = field[1]
            elif name == b"content-length" and length is None:
                length = _number(field[1])
            else:
                special.append(field)
        named: Set[bytes] = _NOTHING
        chunked = False
        if special:
            named, chunked = _judge(special, length)
            lines = self._without_named(lines, named)
        host = self._authority if host is None else host
        lines[0] = self._request_line(scope)
        lines[1] = b"host: " + host
        content = b"".join(lines)
        client = scope.get("client")
        peer: str = client[0] if client and client[0] else "unknown"
        scheme: str = scope.get("scheme", "http")
        anew = self._trusted.lines_for(peer, scheme)
        if not anew:
            kept = _forwarded_on(peer, scheme, host, special, named)
            content += b"".join(kept)
            lines += kept
            lines[-1] += self._via
        else:
            if claims:
                lines = _without_claims(lines)
            lines.append(b"%b%b%b" % (anew, host, self._via))
        # A line break within a line would begin a field, or a request, that was not checked.
        if _LF in content or _CR in content or _NUL in content:
            raise RequestRefused(400, "a header field holds a line break or a NUL")
        return lines, length, chunked

    def _without_named(self, lines: list[bytes], named: Set[bytes]) -> list[bytes]:
        """The lines of a head without those that ``Connection`` names and may take away."""
        dropped = named - self._stays
        if not dropped:
            return lines
        return lines[:2] + [line for line in lines[2:] if line.partition(b":")[0] not in dropped]

    def _request_line(self, scope: dict[str, Any]) -> bytes:
        method = scope["method"]
        return b"%b%b HTTP/1.1" % (_BEGINNINGS.get(method) or _method(method), self._target(scope))

    def _target(self, scope: dict[str, Any]) -> bytes:
        """The request target (RFC 9112 section 3.2.1), path and query as they came."""
        raw_path: bytes | None = scope.get("raw_path")
        path = raw_path or quote(scope["path"], safe=PATH_SAFE).encode("ascii")
        query: bytes | None = scope.get("query_string")
        if path.translate(_PATH) != path or (query and query.translate(_QUERY) != query):
            raise RequestRefused(400, "the request target holds a character that can't be forwarded")
        if path.startswith(b"/"):
            if self._base:
                path = self._base + path
        elif path != b"*" or scope["method"] != "OPTIONS":
            raise RequestRefused(400, "the request target is not a path")
        if query:
            return b"%b?%b" % (path, query)
        return path + b"?" if EMPTY_QUERY in scope else path


def _forwarded_on(
    peer: str, scheme: str, host: bytes, special: list[tuple[bytes, bytes]], named: Set[bytes]
) -> list[bytes]:
    """The forwarding fields of a trusted proxy's request, as lines: its own are kept and added to."""
    lines: list[bytes] = []
    given: set[bytes] = set()
    path: list[bytes] = []
    for name, value in special:
        if name == b"x-forwarded-for":
            path.append(value)
        elif name in _SET_BY_PROXIES and name not in named:
            given.add(name)
            lines.append(b"%b: %b" % (name, value))
    path.append(peer.encode("latin-1"))
    lines.append(b"x-forwarded-for: " + b", ".join(path))
    if b"x-forwarded-proto" not in given:
        lines.append(b"x-forwarded-proto: " + scheme.encode("latin-1"))
    if b"x-forwarded-host" not in given:
        lines.append(b"x-forwarded-host: " + host)
    return lines


def _without_claims(lines: list[bytes]) -> list[bytes]:
    """The lines of a head without forwarding fields, which only a proxy may set."""
    return lines[:2] + [line for line in lines[2:] if _is_set_by_proxies(line) is None]


@lru_cache(maxsize=64)
def _method(method: str) -> bytes:
    """The beginning of a request line."""
    if _METHOD.fullmatch(method) is None:
        raise RequestRefused(400, "the method is not a token")
    if method == "CONNECT":
        raise RequestRefused(501, "CONNECT is not forwarded")
    return method.encode("ascii") + b" "


def connection_options(value: bytes) -> frozenset[bytes]:
    """The options of a ``Connection`` field's value, lower-case."""
    usual = USUAL_OPTIONS.get(value)
    return usual or frozenset([option.strip(b" \t") for option in value.lower().split(b",")])


def with_options(named: Set[bytes], value: bytes) -> set[bytes]:
    """``named`` and the options of one more ``Connection`` field, in one set, since each of thousands may add to it."""
    united = named if isinstance(named, set) else set(named)
    united.update(connection_options(value))
    return united


def _judge(special: list[tuple[bytes, bytes]], length: int | None) -> tuple[Set[bytes], bool]:
    """Reads which fields ``Connection`` names, and whether the body is chunked."""
    named: Set[bytes] = _NOTHING
    coding: bytes | None = None
    for name, value in special:
        if name == b"connection":
            named = with_options(named, value) if named else connection_options(value)
        elif name == b"transfer-encoding":
            if coding is not None or length is not None:
                raise RequestRefused(400, "the body's framing is ambiguous")
            coding = value
        elif name == b"host":
            raise RequestRefused(400, "more than one Host")
        elif name == b"content-length":
            raise RequestRefused(400, "Content-Length is not one number")
    if coding is not None and coding.strip(b" \t").lower() != b"chunked":
        raise RequestRefused(501, "a transfer coding that is not understood")
    return named, coding is not None


def _number(value: bytes) -> int:
    """The value of ``Content-Length``. Raises `RequestRefused` unless it is one plain number."""
    number = SHORT_NUMBERS.get(value)
    if number is not None:
        return number
    if value.isdigit() and len(value) <= _LENGTH_DIGITS:
        return int(value)
    text = value.strip(b" \t")
    if not text.isdigit() or len(text) > _LENGTH_DIGITS:
        raise RequestRefused(400, "Content-Length is not one number")
    return int(text)
