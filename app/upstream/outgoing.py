"""The request side of an exchange with the upstream: sends the client's body, and notices a client that leaves.

A client that leaves in the middle of its upload has made no request, and one that leaves while it waits wants no answer: for
requests that pass through both end the upstream's connection, so that no work goes on for nothing. An enforced attempt has no
such client: its ``receive`` blocks once the body is whole, and its time is its owner's business.
"""

import asyncio

from oncegate.app.http1 import RequestHead
from oncegate.app.upstream.connection import UpstreamConnection
from oncegate.middleware.admission.limits.deadlines import Deadlines
from oncegate.middleware.http.asgi import Message, Receive
from oncegate.middleware.outcome.errors import NoAnswerInTime, OutcomeUnknown

WATCH_AFTER = 1.0
"""Seconds after which an exchange that passes through is watched for a client that has left; most are over before that."""


def lasts_after(timeout: float) -> float:
    """The seconds after which an exchange counts as one that lasts, where it may take ``timeout``."""
    return min(WATCH_AFTER, timeout)


def watches(loop: asyncio.AbstractEventLoop, timeout: float) -> Deadlines:
    """The watch over exchanges that last, one for each event loop and ``timeout``."""
    return Deadlines(loop, lasts_after(timeout))


class ClientLeft(Exception):
    """The client of a request that passes through is gone: there is no one to answer."""


class Outgoing:
    """One request over ``connection``, whose client is watched. Call `answered` when the head is there, `close` always.

    ``timeout``: the seconds that a request which passes through waits for the upstream to take more of its body, and then
    for the response's head; None for an enforced attempt. ``watches`` are those that `watches` gives for it. Failures reach
    whoever waits at the connection: `NoAnswerInTime`, `OutcomeUnknown` where the body that follows isn't the one that was
    announced, `ClientLeft`. ``sent_all``: the request went out whole.
    """

    __slots__ = (
        "_connection",
        "_deadline",
        "_length",
        "_number",
        "_over",
        "_receive",
        "_task",
        "_timeout",
        "_timer",
        "_watches",
        "sent_all",
    )

    def __init__(
        self,
        connection: UpstreamConnection,
        receive: Receive,
        timeout: float | None,
        watches: Deadlines,
    ) -> None:
        self._connection = connection
        self._receive = receive
        self._timeout = timeout
        self._deadline = 0.0
        self._length: int | None = None
        self._watches = watches
        self._number = 0
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._over = False
        self.sent_all = False

    def begin(self, request: RequestHead, head: bytes, first: Message) -> None:
        """Writes the head and what the first message holds of the body; more of it is sent by a task."""
        connection, body = self._connection, first.get("body", b"")
        self._length = request.length
        if first.get("more_body", False):
            connection.begin(is_head=request.is_head)
            connection.write(head, self._framed(body))
            self._task = connection.loop.create_task(self._upload(len(body)))
        else:
            connection.send(head, body, is_head=request.is_head)
            self._sent()

    def begin_again(self, connection: UpstreamConnection, whole: tuple[bytes, bytes], *, is_head: bool) -> None:
        """Sends the same request, which is there ``whole``, over another connection, with as much time as before."""
        self._connection = connection
        connection.send(*whole, is_head=is_head)
        self._sent()

    def resume(self, began: float) -> None:
        """Goes on with a request that went out whole at ``began`` (the loop's clock), and has lasted."""
        self.sent_all = True
        if self._timeout is not None:
            self._deadline = began + self._timeout
            self._tick()

    def answered(self) -> None:
        """The response's head is there. An error before the body was sent says that the upstream doesn't want the rest."""
        if not self.sent_all and self._connection.response.status >= 300:
            self.stop()
            if self._timeout is not None:
                self._number = self._watches.set(self._tick)

    def close(self) -> None:
        """Stops sending and watching."""
        self._over = True
        self.stop()

    def stop(self) -> None:
        """Stops sending and watching for now: on a connection that broke the request may be begun again."""
        if self._number:
            self._watches.drop(self._number)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def _sent(self) -> None:
        self.sent_all = True
        if self._timeout is not None:
            self._deadline = self._connection.loop.time() + self._timeout
            self._number = self._watches.set(self._tick)

    def _tick(self) -> None:
        """The exchange lasts: watch its client, and the clock until there is a head."""
        self._timer = None
        loop = self._connection.loop
        waits = self.sent_all and not self._connection.response.status
        if waits and loop.time() >= self._deadline:
            self._fail(NoAnswerInTime(f"{self._connection.where}: no response within {self._timeout:g} s"))
            return
        if self._task is None:
            self._task = loop.create_task(self._watch())
        if waits:
            self._timer = loop.call_at(self._deadline, self._tick)

    async def _watch(self) -> None:
        """The task of an exchange that lasts: waits for its client to leave."""
        try:
            while (await self._receive())["type"] != "http.disconnect":
                pass
            self._fail(ClientLeft())
        except Exception as error:  # noqa: BLE001 - whoever waits at the connection gets it
            self._fail(error)

    async def _upload(self, sent: int) -> None:
        """The task of an exchange whose body follows in pieces: sends them, then watches."""
        try:
            if not await self._send_rest(sent):
                return
            self._sent()
        except TimeoutError:
            where = self._connection.where
            self._fail(NoAnswerInTime(f"{where}: no more of the body taken in {self._timeout:g} s"))
        except Exception as error:  # noqa: BLE001 - whoever waits at the connection gets it
            self._fail(error)
        else:
            if self._timeout is not None:
                await self._watch()

    def _fail(self, error: Exception) -> None:
        if not self._over:  # the connection may carry another exchange by now
            self._connection.fail(error)

    async def _send_rest(self, sent: int) -> bool:
        """Whether the rest of the body went out whole."""
        connection, length = self._connection, self._length
        more = True
        while more and not connection.lost:
            if connection.is_full:
                async with asyncio.timeout(self._timeout):
                    await connection.drain()
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise OutcomeUnknown("the request's body broke off") if self._timeout is None else ClientLeft()
            body, more = message.get("body", b""), message.get("more_body", False)
            sent += len(body)
            if length is not None and (sent > length or (sent < length and not more)):
                raise OutcomeUnknown("the request's body is not as long as its Content-Length says")
            data = self._framed(body)
            connection.write(data if more or length is not None else data + b"0\r\n\r\n")
        return not more

    def _framed(self, body: bytes) -> bytes:
        if self._length is not None or not body:
            return body  # an empty chunk would end the body
        return b"%x\r\n%b\r\n" % (len(body), body)
