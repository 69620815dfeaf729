"""Header lines of a stored response that a replay sends as they lie, without a look at any of them.

They are judged when the record is encoded: no text of them needs an escape in JSON, and all that they say of a connection and its
framing is the body's length. Then the head begins with the status, which means nothing to versions that don't know this.
"""
# Compiled: docs/decisions/0012-compiled.md

from typing import Any, Final

import orjson

from oncegate.cache.fields import HOP_BY_HOP, LONGEST_RECURRING, MOST_RECURRING, RECURRING
from oncegate.cache.record import ReadyResponse, StoredResponse

KEPT: Final[dict[Any, bytes]] = {}
"""The texts of lines that come again."""
_LENGTH: Final = b"content-length"
READY: Final = b'{"s":'
"""Begins a head whose lines are ready to be sent."""
_dumps: Final = orjson.dumps  # a module's own name takes no look into a dict, compiled
_STATUSES: Final = {b"%d" % status: status for status in range(100, 1000)}
"""Found in half the time that a number in bytes takes."""
_TEXTS: Final = b',"h":[["'
"""Stands between the status and the texts,"""
_BEHIND: Final = b'"]],"t":'
"""and this behind them."""
_STATUS_AT: Final = len(READY)
_STATUS_ENDS: Final = _STATUS_AT + 3
_TEXTS_AT: Final = _STATUS_ENDS + len(_TEXTS)
_named: Final = tuple.__new__
"""Makes a named tuple in half the time of its own constructor."""
# Numbers: given bytes, ``in`` first tries them as a number, and the error that this raises costs more than the search.
_BACKSLASH: Final = ord("\\")
_QUOTE: Final = ord('"')
_DEL: Final = 0x7F
_LF: Final = 10
_CR: Final = 13
_NUL: Final = 0


def ready_texts(headers: tuple[tuple[bytes, bytes], ...], size: bytes) -> bytes:
    """The texts of header lines that can be sent as they lie in front of a body of ``size``, as JSON has them; else empty.

    All that such lines say of a connection and its framing is the body's length, and no text of them needs an escape.
    """
    given: Any = headers
    line: tuple[bytes, ...]  # compiled, one of two parts would be taken apart, and made anew to be looked up
    lengths, texts = 0, []
    for line in given:
        text = KEPT.get(line)
        if text is None:
            if line[0] == _LENGTH:
                lengths += 1
                text = b'content-length","' + size if line[1] == size else b""
            else:
                text = _text_of(line)
            if not text:
                return b""
        texts.append(text)
    return b'"],["'.join(texts) if lengths == 1 else b""


def _text_of(line: tuple[bytes, ...]) -> bytes:
    """The texts of one header line; empty where they need an escape, or the line is about a connection or framing."""
    name, text = line[0], b'","'.join(line)
    # Each escape makes a text longer, and so does each character beyond ASCII. The quotes between the two have one, too.
    if name in HOP_BY_HOP or _DEL in text or len(_dumps(text.decode("latin-1"))) != len(text) + 4:
        return b""
    if name in RECURRING and len(text) <= LONGEST_RECURRING:
        if len(KEPT) >= MOST_RECURRING:
            KEPT.clear()
        KEPT[line] = text
    return text


def ready_response(packed: bytes, body: bytes, as_sent: bool) -> ReadyResponse | StoredResponse | None:
    """The response of a head that begins with `READY`; as it is sent, if that is what is wanted and its lines are ready.

    ``None``: another one has written it, with escapes, so that it takes a parser of JSON.
    """
    status = _STATUSES.get(packed[_STATUS_AT:_STATUS_ENDS])
    at = packed.rfind(_BEHIND)
    if status is None or at < 0 or packed[_STATUS_ENDS:_TEXTS_AT] != _TEXTS:
        return None
    texts, ended = packed[_TEXTS_AT:at], packed[at + len(_BEHIND) :]
    if _BACKSLASH in texts or not texts.isascii():
        return None
    if as_sent:
        lines = _as_sent(texts)
        if lines:
            return ReadyResponse(status, lines, body, ended)
    parts = texts.split(b'"')
    headers = tuple([(parts[at], parts[at + 2]) for at in range(0, len(parts), 4)])
    return _named(StoredResponse, (status, headers, body, int(ended[: ended.index(b",")])))


def _as_sent(texts: bytes) -> bytes:
    """Header lines as HTTP/1.1 sends them, each behind a CRLF, of their texts.

    Empty where one is what stands between two others, by which a quote is left over, or would end a line, which none that is
    ready does.
    """
    if _LF in texts or _CR in texts or _NUL in texts:
        return b""
    lines = b"\r\n" + texts.replace(b'"],["', b"\r\n").replace(b'","', b": ")
    return b"" if _QUOTE in lines else lines
