"""Reads a request's body, whole or not at all, and gives it once more."""
# Compiled: docs/decisions/0012-compiled.md

from collections.abc import Callable
from time import monotonic

from oncegate.middleware.admission.within import within
from oncegate.middleware.http.asgi import Message, Receive
from oncegate.middleware.rules.errors import PayloadTooLarge, RequestTimeout
from oncegate.middleware.rules.key import Fields
from oncegate.middleware.rules.policy import CONTENT_LENGTH


def _uncounted(_: int) -> None:
    pass


async def read_body(
    receive: Receive, fields: Fields, limit: int, timeout: float, hold: Callable[[int], None] = _uncounted
) -> bytes | None:
    """The whole body, or ``None`` where the client left before its last chunk: then there was no request.

    Raises `PayloadTooLarge` beyond ``limit`` bytes (at once where Content-Length says so), `RequestTimeout`, and what ``hold``
    raises, which is called with the size of each piece of a body that comes in several.
    """
    declared = fields.get(CONTENT_LENGTH)
    if declared is not None and declared[0].isdigit() and int(declared[0][:20]) > limit:
        raise PayloadTooLarge(f"The body is larger than {limit} bytes.")
    began = monotonic()
    try:
        message = await within(timeout, receive())
        if not message.get("more_body", False):  # as a rule
            return None if message["type"] == "http.disconnect" else _chunk(message, 0, limit)
        return await within(max(0.0, timeout - (monotonic() - began)), _whole(message, receive, limit, hold))
    except TimeoutError:
        raise RequestTimeout(f"The body did not arrive within {timeout:g} seconds.") from None


async def _whole(message: Message, receive: Receive, limit: int, hold: Callable[[int], None]) -> bytes | None:
    """The body that begins with ``message``, which is not all of it."""
    chunks: list[bytes] = []
    size = 0
    while message["type"] != "http.disconnect":
        chunk = _chunk(message, size, limit)
        hold(len(chunk))
        chunks.append(chunk)
        size += len(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)
        message = await receive()
    return None


def _chunk(message: Message, size: int, limit: int) -> bytes:
    """The chunk of ``message``. Raises `PayloadTooLarge` where it goes beyond ``limit``, after ``size`` bytes before it."""
    chunk = message.get("body", b"")
    if not isinstance(chunk, bytes):  # middleware in front may give a bytearray
        chunk = bytes(chunk)
    if size + len(chunk) > limit:
        raise PayloadTooLarge(f"The body is larger than {limit} bytes.")
    return chunk


class BodyAgain:
    """ASGI ``receive`` for a request whose body was read already: all of it, then what comes after it."""

    __slots__ = ("_body", "_receive")

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def receive(self) -> Message:
        """The next message."""
        body, self._body = self._body, None
        if body is None:
            return await self._receive()
        return {"type": "http.request", "body": body, "more_body": False}
