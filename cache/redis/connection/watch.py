"""Subscribes to Sentinels, to learn at once that another server is the master.

A failover that an operator directs (``SENTINEL FAILOVER``) leaves the old master running, and taking writes, for some ten
seconds; then it is made a replica and forgets them. So waiting for a connection to break is not enough: each Sentinel is
listened to. The one in charge says first that it is about to promote a replica: from then on nothing is sent to the old
master. As soon as the new one has confirmed it is announced (``+promoted-slave``), and calls go there. The other Sentinels
announce it when the failover is over (``+switch-master``), which may be seconds later.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import hiredis

from oncegate.cache.errors import CacheError
from oncegate.cache.redis.connection.connect import Dialler
from oncegate.cache.redis.connection.pipe import Reply
from oncegate.cache.redis.scripts import pack
from oncegate.cache.redis.url import Server

log = logging.getLogger(__name__)

OnMaster = Callable[[Server | None], None]

QUIET = 5.0
"""Seconds of silence until a Sentinel is pinged; after twice that it counts as gone."""
PAUSE = 1.0
"""Seconds until a Sentinel that was lost is tried again."""

_PROMOTING, _PROMOTED, _SWITCHED = b"+failover-state-send-slaveof-noone", b"+promoted-slave", b"+switch-master"
_SUBSCRIBE = pack(b"SUBSCRIBE", _PROMOTING, _PROMOTED, _SWITCHED)
_PING = pack(b"PING")


async def watch(
    dialler: Dialler,
    service: str,
    fetch: Callable[[], Awaitable[Server | CacheError]],
    on_master: OnMaster,
) -> None:
    """Call ``on_master`` with the master that a Sentinel names (``fetch``), each new one, and ``None`` when one is about to come.

    Until cancelled; never raises.
    """

    def on_message(reply: Reply) -> None:
        if isinstance(reply, list) and reply[0] == b"message":
            name, master = _READERS[reply[1]](reply[2].decode())
            if name == service:
                on_master(master)

    while True:
        listener = _Listener(on_message)
        try:
            listener.take_over(await dialler.connect())
            await listener.subscribed
            # Only after subscribing, so that no switch is missed between the two.
            master = await fetch()
            if not isinstance(master, CacheError):
                on_master(master)
            await listener.listen()
        except CacheError as error:
            log.debug("%s", error)
        finally:
            listener.close()
        await asyncio.sleep(PAUSE)


def _read_promoting(message: str) -> tuple[str, Server | None]:
    """``slave <name> <ip> <port> @ <service> <old ip> <old port>``."""
    return message.partition(" @ ")[2].rsplit(" ", 2)[0], None


def _read_promoted(message: str) -> tuple[str, Server | None]:
    """The same."""
    promoted, _, service = message.partition(" @ ")
    _, _, host, port = promoted.rsplit(" ", 3)
    return service.rsplit(" ", 2)[0], (host, int(port))


def _read_switched(message: str) -> tuple[str, Server | None]:
    """``<service> <old ip> <old port> <new ip> <new port>``."""
    name, _, _, host, port = message.rsplit(" ", 4)
    return name, (host, int(port))


_READERS = {_PROMOTING: _read_promoting, _PROMOTED: _read_promoted, _SWITCHED: _read_switched}


class _Listener(asyncio.Protocol):
    """A connection on which a Sentinel publishes."""

    def __init__(self, on_message: Callable[[Reply], None]) -> None:
        self.subscribed = asyncio.get_running_loop().create_future()
        self._ended = asyncio.get_running_loop().create_future()
        self._on_message = on_message
        self._reader = hiredis.Reader()
        self._is_alive = True
        self._writer: asyncio.StreamWriter | None = None

    def take_over(self, writer: asyncio.StreamWriter) -> None:
        """Become the protocol of ``writer``'s transport, and subscribe."""
        self._writer = writer
        writer.transport.set_protocol(self)
        writer.transport.write(_SUBSCRIBE)

    async def listen(self) -> None:
        """Return when the connection has ended, or has been silent for too long."""
        while self._is_alive and not self._ended.done():
            self._is_alive = False
            await asyncio.wait((self._ended,), timeout=QUIET)
            if not self._is_alive and self._writer is not None and not self._ended.done():
                self._writer.transport.write(_PING)
                await asyncio.wait((self._ended,), timeout=QUIET)

    def close(self) -> None:
        """Cut the connection."""
        if self._writer is not None:
            self._writer.transport.abort()

    def data_received(self, data: bytes) -> None:
        """The Sentinel's messages: the reply to the subscription first."""
        self._is_alive = True
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not False:
                if not self.subscribed.done():
                    self.subscribed.set_result(None)
                self._on_message(reply)
        except (hiredis.ProtocolError, ValueError, IndexError, KeyError):
            self.close()  # it does not speak RESP; perhaps a later connection does

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - treated alike, whatever broke it
        """The transport has closed."""
        for future in (self.subscribed, self._ended):
            if not future.done():
                future.set_result(None)
