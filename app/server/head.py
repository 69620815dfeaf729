"""Rules for a request's head that the parser does not check: host, target, ``Expect`` and ``Upgrade``; and refusals."""
# Compiled: docs/decisions/0012-compiled.md

import re
from binascii import a2b_qp
from typing import Final

_HOST: Final = rb"[A-Za-z0-9._~!$&'()*+,;=%:\[\]-]"
is_host: Final = re.compile(_HOST + rb"*").fullmatch
_ABSOLUTE: Final = re.compile(rb"https?://(" + _HOST + rb"+)(?=[/?]|$)", re.IGNORECASE)
"""A target in absolute-form (RFC 9112 section 3.2.2), without the userinfo that RFC 9110 section 4.2.4 calls an error."""

TOO_LARGE: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
TIMED_OUT: Final = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
MALFORMED: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: 31\r\n"
    b"connection: close\r\n\r\nInvalid HTTP request received.\n"
)
NO_SUCH_METHOD: Final = (
    b"HTTP/1.1 501 Not Implemented\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: 40\r\n"
    b"connection: close\r\n\r\nThe request's method is not known here.\n"
)
"""Where its body ends can't be known: a method may have rules of its own (RFC 9110 section 9.1)."""

MAX_INCOMPLETE: Final = 1000
"""How often a target may have a ``%`` without two digits behind it, which stands for itself: each takes its time."""
_incomplete: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")


class HeadRefused(Exception):
    """Raised into the parser, to stop it."""


class TargetRefused(ValueError):
    """A target that is malformed (RFC 3986 section 2.1) over and over."""


def without_authority(url: bytes, method: bytes, version: str, headers: list[tuple[bytes, bytes]]) -> bytes:
    """The target as a path. In ``headers``, a target's own authority replaces `Host`.

    Raises `HeadRefused` unless there is one valid `Host`, as RFC 9112 section 3.2 has it; only version 1.0 may be without.
    """
    hosts = [number for number, (name, _) in enumerate(headers) if name == b"host"]
    if len(hosts) != 1 and (hosts or version == "1.1"):
        raise HeadRefused
    if hosts and not is_host(headers[hosts[0]][1]):
        raise HeadRefused
    if url[:1] == b"/" or (url == b"*" and method == b"OPTIONS"):
        return url
    absolute = _ABSOLUTE.match(url)
    if absolute is None:
        raise HeadRefused
    for number in hosts:
        del headers[number]
    headers.append((b"host", absolute[1]))
    rest = url[absolute.end() :]
    if not rest and method == b"OPTIONS":
        rest = b"*"  # RFC 9112 section 3.2.4
    return rest if rest.startswith((b"/", b"*")) else b"/" + rest


def expects_continue(headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether the client waits for a ``100 Continue`` before it sends its body (RFC 9110 section 10.1.1)."""
    return any(name == b"expect" and value.lower() == b"100-continue" for name, value in headers)


def requests_websocket(headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether ``Upgrade`` names a protocol that its client can't do without. (It can without h2c: RFC 9110 section 7.8.)"""
    return any(
        name == b"upgrade"
        and b"websocket" in [protocol.partition(b"/")[0].strip(b" \t") for protocol in value.lower().split(b",")]
        for name, value in headers
    )


def can_switch(method: bytes, headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether a request for a WebSocket is one as RFC 6455 section 4.1 has it, so that it can be forwarded as such.

    With a body it can be read in two ways; by another protocol beside it (h2c) requests would get past what is checked here.
    """
    offered = [value.lower() for name, value in headers if name == b"upgrade"]
    has_body = any(
        name == b"transfer-encoding" or (name == b"content-length" and value != b"0") for name, value in headers
    )
    return method == b"GET" and offered == [b"websocket"] and not has_body


def unquoted(path: bytes) -> str:
    """``urllib.parse.unquote``, which takes 5 ms for 64 KiB, in bounded time, of a path of visible ASCII. Raises `TargetRefused`.

    Quoted-printable is the same encoding with another sign, and its decoder is in C.
    """
    whole, incomplete = _incomplete.subn(b"%25", path, MAX_INCOMPLETE + 1)
    if incomplete > MAX_INCOMPLETE:
        raise TargetRefused
    return a2b_qp(whole.replace(b"=", b"%3D").replace(b"%", b"=")).decode("utf-8", "replace")
