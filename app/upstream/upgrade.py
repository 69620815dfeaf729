"""The answer to a request for a WebSocket: is it the upstream's 101, after which the connection is no longer HTTP's?

Behind it bytes pass that nobody here reads. So the upstream must be seen to agree: by an `Upgrade` to WebSocket, and by the
digest of the client's key (RFC 6455 section 4.2.2), which an app that was only made to answer 101 doesn't have. After any other
answer the connection is HTTP's as before, and the answer is passed on as ever.
"""

import asyncio
from base64 import b64encode
from collections.abc import Callable
from hashlib import sha1
from typing import Any, Final, NamedTuple

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from oncegate.app.http1 import END_TO_END, VIA, connection_options
from oncegate.app.upstream.connection import UpstreamConnection
from oncegate.app.upstream.response import MAX_FIELDS, MAX_HEAD_BYTES
from oncegate.cache.fields import HOP_BY_HOP
from oncegate.middleware.http.asgi import Scope
from oncegate.middleware.outcome.errors import OutcomeUnknown

UPGRADE: Final = b"connection: Upgrade\r\nupgrade: websocket\r\n\r\n"
"""The last lines of the request, and of the answer that agrees: written anew, since they are of one connection alone."""
_AGREED: Final = b"HTTP/1.1 101"
_STATUS_LINE: Final = b"HTTP/1.1 101 Switching Protocols\r\n"
_END_OF_HEAD: Final = b"\r\n\r\n"
_ITS_DIGEST: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455 section 1.3


class Switched(NamedTuple):
    """An upstream's connection that is HTTP's no more. ``head`` is its answer as the client gets it, ``early`` what came behind.

    Call ``lost`` when the transport is gone.
    """

    transport: asyncio.Transport
    head: bytes
    early: bytes
    lost: Callable[[Exception | None], None]


class SwitchedAway(Exception):
    """Ends an exchange by HTTP whose connection another protocol has."""


class AnswerToUpgrade(asyncio.Protocol):
    """The protocol of a ``connection`` to the upstream until it is known what it answers to ``scope``.

    ``join`` is called at once, within the read that brought the answer, if that is a 101: what follows is not HTTP.
    """

    def __init__(
        self, connection: UpstreamConnection, scope: Scope, *, via: bool, join: Callable[[Switched], None]
    ) -> None:
        self._connection = connection
        self._key = next((value for name, value in scope["headers"] if name == b"sec-websocket-key"), b"")
        self._via = via
        self._join = join
        self._data = b""
        if connection.transport is not None:
            connection.transport.set_protocol(self)

    def data_received(self, data: bytes) -> None:
        """Collect bytes until they show which answer it is."""
        self._data += data
        if not _AGREED.startswith(self._data[: len(_AGREED)]):
            self._give_back()
            return
        end = self._data.find(_END_OF_HEAD)
        if max(end, 0 if end >= 0 else len(self._data)) > MAX_HEAD_BYTES:
            self._fail("its head is too long")
        elif end >= 0:
            self._switch()

    def eof_received(self) -> None:
        """The upstream has closed its side before its answer was whole."""
        self._give_back()
        self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        """The upstream reads slower than we write."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """The upstream has caught up."""
        self._connection.resume_writing()

    def _give_back(self) -> None:
        """It is an answer like any other."""
        connection = self._connection
        if connection.transport is not None:
            connection.transport.set_protocol(connection)
        data, self._data = self._data, b""
        if data:
            connection.data_received(data)

    def _fail(self, reason: object) -> None:
        self._connection.fail(OutcomeUnknown(f"{self._connection.where}: malformed response ({reason})"))

    def _switch(self) -> None:
        fields = _Fields()
        parser: Any = HttpResponseParser(fields)
        try:
            parser.feed_data(self._data)
        except HttpParserUpgrade as behind:
            refusal = self._refusal(fields.all)
            if refusal is None:
                self._leave(fields.all, self._data[behind.args[0] :])
            else:
                self._fail(refusal)
        except HttpParserError as error:
            self._fail(error)
        else:
            self._fail("101 without Upgrade")

    def _refusal(self, fields: list[tuple[bytes, bytes]]) -> str | None:
        """Why the 101 is none."""
        by_name = dict(fields)
        digest = b64encode(sha1(self._key + _ITS_DIGEST, usedforsecurity=False).digest())
        if by_name.get(b"upgrade", b"").lower() != b"websocket":
            return "101 to another protocol than the one that was asked for"
        if by_name.get(b"sec-websocket-accept") != digest:
            return "101 without the digest of the client's Sec-WebSocket-Key"
        if b"content-length" in by_name or b"transfer-encoding" in by_name:
            return "an interim response that announces a body"
        return "more fields than can be taken" if len(fields) > MAX_FIELDS else None

    def _leave(self, fields: list[tuple[bytes, bytes]], early: bytes) -> None:
        connection = self._connection
        transport = connection.leave(SwitchedAway())
        if transport is None:
            return
        named = frozenset().union(*(connection_options(value) for name, value in fields if name == b"connection"))
        dropped = HOP_BY_HOP | (named - END_TO_END)
        lines = [b"%b: %b\r\n" % field for field in (*fields, *([VIA] if self._via else [])) if field[0] not in dropped]
        self._join(Switched(transport, b"".join([_STATUS_LINE, *lines, UPGRADE]), early, connection.connection_lost))


class _Fields:
    """httptools' callbacks: the fields of a head."""

    def __init__(self) -> None:
        self.all: list[tuple[bytes, bytes]] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        """One field: white space behind its value is no part of it."""
        self.all.append((name.lower(), value.rstrip(b" \t")))
