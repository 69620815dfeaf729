"""Finds the last request of several that came in one read, by httptools."""
# Compiled: docs/decisions/0012-compiled.md

from typing import Final

import httptools

_END_OF_HEAD: Final = b"\r\n\r\n"


def last_request(data: bytes, begins: int) -> int:
    """The index of the last request of ``data`` that llhttp reaches; line breaks before it count as part of it.

    ``begins`` is where the first one begins; before it stands a method that stands in for another one.
    """
    seen = _Ends()
    parser = httptools.HttpRequestParser(seen)
    at = begins
    if at:
        parser.feed_data(b"PUT")
    last = at
    try:
        while at < len(data):
            end = at + seen.due
            if not seen.due:
                end = data.find(_END_OF_HEAD, at) + len(_END_OF_HEAD)
                if end < len(_END_OF_HEAD):
                    break
            parser.feed_data(memoryview(data)[at:end])
            at = end
            if seen.take():
                last = at
    except httptools.HttpParserError:
        pass  # here it stopped
    return last


class _Ends:
    """Parser callbacks that find out where requests end. ``due``: bytes of a body that come next."""

    def __init__(self) -> None:
        self.due = 0
        self._length = 0
        self._is_whole = False

    def take(self) -> bool:
        """Whether a request has ended with what was fed."""
        is_whole, self._is_whole = self._is_whole, False
        self.due = 0 if is_whole else self._length
        self._length = 0
        return is_whole

    def on_header(self, name: bytes, value: bytes) -> None:
        """One field of a head."""
        if name.lower() == b"content-length":
            self._length = int(value)

    def on_message_complete(self) -> None:
        """A request has ended."""
        self._is_whole = True
