"""Header lines of a stored response that a replay sends as they lie, without a look at any of them.

They are judged when the record is encoded: no text of them needs an escape in JSON, and all that they say of a connection and its
framing is the body's length. Then the head begins with the status, which means nothing to versions that don't know this.
"""
# Compiled: docs/decisions/0012-compiled.md

from typing import Final

from oncegate.cache.fields import HOP_BY_HOP
from oncegate.cache.record import Record, StoredResponse

READY: Final = b'{"s":'
"""Begins a head whose lines are ready to be sent."""
_PLAIN: Final = bytes([each for each in range(0x20, 0x7F) if each not in b'"\\'])
"""The characters that JSON has as they are, within ASCII."""
# Numbers: given bytes, ``in`` first tries them as a number, and the error that this raises costs more than the search.
_BACKSLASH: Final = ord("\\")
_QUOTE: Final = ord('"')
_LF: Final = 10
_CR: Final = 13
_NUL: Final = 0
_named: Final = tuple.__new__
"""Makes a named tuple in half the time of its own constructor."""


def ready_texts(headers: tuple[tuple[bytes, bytes], ...], body: bytes) -> bytes:
    """The texts of header lines that can be sent in front of ``body`` as they lie, as JSON has them; else empty.

    All that such lines say of a connection and its framing is the body's length, and no text of them needs an escape.
    """
    lengths = 0
    for name, value in headers:
        if name == b"content-length":
            lengths += 1
            if value != b"%d" % len(body):
                return b""
        elif name in HOP_BY_HOP:
            return b""
    if lengths != 1:
        return b""
    texts = b'"],["'.join([b'","'.join((name, value)) for name, value in headers])
    return texts if texts.translate(None, _PLAIN) == b'"' * (4 * len(headers) - 2) else b""


def ready_response(record: Record, packed: bytes, body: bytes, as_sent: bool) -> StoredResponse | None:
    """The response of a head whose lines are ready to be sent; those come as the ``lines`` of its ``record`` if ``as_sent``.

    ``None``: another one has written it, with escapes, so that it takes a parser of JSON.
    """
    status, _, rest = packed.partition(b',"h":[["')
    texts, _, rest = rest.partition(b'"]],"t":')
    if _BACKSLASH in texts or not texts.isascii():
        return None
    headers: tuple[tuple[bytes, bytes], ...] = ()
    if as_sent:
        record.lines = _as_sent(texts)
    if not record.lines:
        parts = texts.split(b'"')
        headers = tuple([(parts[at], parts[at + 2]) for at in range(0, len(parts), 4)])
    # Of a string: a number in bytes takes twice as long.
    code, completed_at_ms = int(status[len(READY) :].decode()), int(rest[: rest.index(b",")].decode())
    return _named(StoredResponse, (code, headers, body, completed_at_ms))


def _as_sent(texts: bytes) -> bytes:
    """Header lines as HTTP/1.1 sends them, each behind a CRLF, of their texts.

    Empty where one is what stands between two others, by which a quote is left over, or would end a line, which none that is
    ready does.
    """
    if _LF in texts or _CR in texts or _NUL in texts:
        return b""
    lines = b"\r\n" + texts.replace(b'"],["', b"\r\n").replace(b'","', b": ")
    return b"" if _QUOTE in lines else lines
