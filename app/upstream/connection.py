"""One connection to the upstream: an asyncio protocol around a `ResponseReader`.

No task and no stream reader: the parser's callbacks fill plain fields, and one future wakes the caller when there is something
to take. Whatever goes wrong after the first byte was written is an `OutcomeUnknown`; the connection is closed then.
"""
# Compiled: docs/decisions/0012-compiled.md

import asyncio
import math
import select
from typing import Final, Protocol, cast

from oncegate.app.upstream.response import ResponseReader
from oncegate.middleware.http.capture import declared_length
from oncegate.middleware.outcome.errors import OutcomeUnknown

HIGH_WATER = 65536
"""Bytes of a response's body that wait to be taken; with more, reading pauses (one read that was under way comes on top)."""
SMALL: Final = 65536
"""Bytes of a response's body that may be waited for, so that it goes out whole."""
_PIECE_BYTES: Final = 32768
"""The most that is parsed at once. A read may bring 256 KiB: 40,000 chunks of a byte each."""
_NEVER: Final = math.inf
_ONE_WRITE: Final = 65536  # above it, copying a body behind its head costs more than a second write


class Awaiting(Protocol):
    """Whoever takes a response by callback."""

    def on_response(self) -> None:
        """The response has progressed, or failed."""

    def on_lasting(self) -> None:
        """There was no whole response for as long as `oncegate.app.upstream.lasting` was to wait."""


class UpstreamConnection(asyncio.Protocol):
    """A connection that carries one request and its response at a time, until ``response.complete``.

    `send` is `begin` and `write` for a request that is there whole: ``whole`` holds its head and body until it is answered.

    ``closed`` is done when the transport is gone; ``lost`` says so without waiting, and also of one that is closing.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self.loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.then: Awaiting | None = None
        """Called, instead of waking a waiter, whenever there is something to take or the exchange has failed."""
        self._writable: asyncio.Future[None] | None = None
        self._reading_paused = False
        self._writing_paused = False
        self._busy = False
        self.error: Exception | None = None
        """The error that `head` and `read` raise."""
        self.whole: tuple[bytes, bytes] | None = None
        self.response = ResponseReader()
        self._unparsed = b""
        """The rest of what was read; nothing more is read as long as there is any."""
        self.closed: asyncio.Future[None] = self.loop.create_future()
        self.lost = False
        self.expires = 0.0
        self.lasts_at = _NEVER
        """When the exchange that it carries counts as one that lasts."""

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the transport, and a poll object that finds out at once whether an idle connection went stale."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are none of asyncio's classes
        self._poll = select.poll()
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        """Passes bytes to the reader and wakes the waiter."""
        if not self._busy:  # bytes on an idle connection: a response without a request, or a time-out's 408
            self.abort()
            return
        response = self.response
        if len(data) > _PIECE_BYTES or self._unparsed:
            self._parse_some(self._unparsed + data)
        else:
            response.feed(data)
        if response.complete:
            self._wake()
        elif response.failure is not None:
            self.fail(OutcomeUnknown(f"{self.where}: {response.failure}"))
        else:
            if (response.buffered > HIGH_WATER or self._unparsed) and not self._reading_paused:
                self._reading_paused = True
                self._transport.pause_reading()  # type: ignore[union-attr]  # data only comes while there is one
            if response.status:
                self._wake()

    def _parse_some(self, data: bytes) -> None:
        """Parse a long read: in pieces, and where there is more in them than bodies, the rest in the loop's next rounds.

        What is left is part of the response: behind one that is complete, all is parsed at once, since it is surplus.
        """
        response = self.response
        at, is_dense = 0, False
        while at < len(data) and not is_dense and response.failure is None:
            end = len(data) if response.complete else at + _PIECE_BYTES
            before = response.buffered
            response.feed(data[at:end])
            at = end
            is_dense = response.buffered - before < _PIECE_BYTES // 2 and not response.complete
        self._unparsed = data[at:]
        if self._unparsed:
            self.loop.call_soon(self._parse_more)

    def _parse_more(self) -> None:
        if self.lost or not self._unparsed:
            return
        rest, self._unparsed = self._unparsed, b""
        self.data_received(rest)
        if self.response.buffered <= HIGH_WATER:
            self._read_on()

    def _read_on(self) -> None:
        if self._reading_paused and not self._unparsed:
            self._reading_paused = False
            if not self.lost:
                self._transport.resume_reading()  # type: ignore[union-attr]  # data only comes while there is one

    def eof_received(self) -> None:
        """The upstream has closed its side: the end of some responses. Returning nothing closes ours too."""
        response = self.response
        if self._busy and self.error is None:
            response.feed_eof()
            if response.failure is not None:
                self.error = OutcomeUnknown(f"{self.where}: {response.failure}")
            self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing more can come or go. A body that lasts until the end of the stream has had it in `eof_received`, or never:
        what we have aborted ourselves, or TLS that ended without its alert, must not pass for the whole.
        """
        rest, self._unparsed = self._unparsed, b""
        if rest and not self.lost:  # it came before the end
            self.response.feed(rest)
        self.lost = True
        if self._busy and not self.response.complete and self.error is None:
            reason = "the connection broke" if exc is None else f"the connection broke ({type(exc).__name__})"
            self.error = OutcomeUnknown(f"{self.where}: {reason}")
        self._transport = None  # some raise when they are closed once more
        self.response.release()
        self._wake()
        self.resume_writing()
        if not self.closed.done():
            self.closed.set_result(None)

    def pause_writing(self) -> None:
        """The upstream reads slower than we write."""
        self._writing_paused = True

    def resume_writing(self) -> None:
        """The upstream has caught up."""
        self._writing_paused = False
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    # the forwarder's side

    def is_stale(self) -> bool:
        """Whether an idle connection can't be used: the upstream has closed it, or has sent something unasked. No waiting."""
        return self.lost or self._transport is None or self._transport.is_closing() or bool(self._poll.poll(0))

    def begin(self, is_head: bool) -> None:
        """Makes ready for one request (``is_head``: by the method HEAD)."""
        self._busy = True
        self.error = None
        self.whole = None
        self.response.expect(is_head)

    def send(self, head: bytes, body: bytes, is_head: bool) -> None:
        """Begins with a request that is there whole, and hands it to the transport."""
        self.begin(is_head)
        self.whole = (head, body)
        self.write(head, body)

    def write(self, head: bytes, body: bytes = b"") -> None:
        """Hands bytes to the transport; nothing to one that is gone: then `head` raises."""
        transport = self._transport
        if self.lost or transport is None or transport.is_closing():
            return
        try:
            if len(body) <= _ONE_WRITE:
                transport.write(head + body if body else head)
            else:
                transport.write(head)
                transport.write(body)
        except (OSError, RuntimeError) as error:  # uvloop raises where asyncio only logs
            self.fail(OutcomeUnknown(f"{self.where}: the request could not be written ({type(error).__name__})"))

    @property
    def is_soon_whole(self) -> bool:
        """Whether what is missing of the response is the rest of a small body: then its head can wait for it."""
        response = self.response
        if self.error is not None or response.surplus:
            return False
        return not response.status or 0 <= declared_length(response.status, response.headers) <= SMALL

    @property
    def transport(self) -> asyncio.Transport | None:
        """The transport, until it is gone or left to another protocol."""
        return self._transport

    def leave(self, reason: Exception) -> asyncio.Transport | None:
        """End the exchange with ``reason``, which `head` raises, and leave the transport, open, to another protocol.

        That one calls `connection_lost` at its end.
        """
        transport, self._transport = self._transport, None
        self.error = reason
        self.response.release()
        self._wake()
        return transport

    def leave_callbacks(self) -> None:
        """Call nobody back any more: the exchange is over, or goes on by waiting."""
        self.then = None
        self.lasts_at = _NEVER

    def forget(self) -> None:
        """End what `then` waits for, if it still does: else the connection carries another exchange by now."""
        if self.then is not None:
            self.leave_callbacks()
            self.abort()

    @property
    def broke_unanswered(self) -> bool:
        """Whether an idle connection broke under the request that it was taken for, before anything of a response came."""
        return (
            self.expires > 0.0
            and self.whole is not None
            and self.response.untouched
            and type(self.error) is OutcomeUnknown  # not one in time
        )

    @property
    def is_full(self) -> bool:
        """Whether the upstream is behind in reading, so that `drain` would wait."""
        return self._writing_paused and not self.lost

    async def drain(self) -> None:
        """Returns when the transport takes more bytes, or is gone."""
        while self.is_full:
            self._writable = self.loop.create_future()
            await self._writable

    async def head(self) -> None:
        """Returns when ``response`` holds the final head. Raises `OutcomeUnknown` where none comes or it can't be trusted."""
        response = self.response
        while not response.status and self.error is None:
            await self._wait()
        if self.error is not None:
            raise self.error
        if response.surplus:
            raise OutcomeUnknown(f"{self.where}: malformed response (more bytes than it announced)")

    async def read(self) -> bytes:
        """The next bytes of the body; empty only when it is complete. Raises `OutcomeUnknown` where it was cut off."""
        response = self.response
        while not response.buffered:
            if response.complete:
                return b""
            if self.error is not None:
                raise self.error
            await self._wait()
        body = response.take()
        if self._reading_paused:
            self._read_on()
        return body

    def finish(self) -> bool:
        """Ends an exchange whose response is complete: may the connection carry another?"""
        self._busy = False
        self.whole = None
        response = self.response
        return (
            response.persistent and response.complete and not response.surplus and not self.lost and self.error is None
        )

    def fail(self, error: Exception) -> None:
        """Ends the exchange with an error, which `head` and `read` raise (after what had arrived), and the connection."""
        if self.error is None:
            self.error = error
        self.abort()
        self._wake()

    def abort(self) -> None:
        """Closes the connection at once, whatever is under way."""
        self.lost = True
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Closes an idle connection in good order."""
        self.lost = True
        if self._transport is not None:
            self._transport.close()

    async def _wait(self) -> None:
        self._waiter = self.loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self.then is not None:
            self.then.on_response()
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
