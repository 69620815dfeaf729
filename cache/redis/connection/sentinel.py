"""The topology of a Sentinel service: opens connections to the server that is the master at the moment.

Strategy. Each time a connection is opened, the master is fetched from all Sentinels at once, so that one that is down or
hangs costs no time. An answer is only believed when the server itself says, on the new connection, that it is a master:
a Sentinel may lag behind. Where it is a replica, the next different answer is tried.

A connection lives until it breaks, a reply says that the server has become a replica, or a Sentinel announces another master;
then all this happens again. To wait for it to break is not enough: a failover that an operator directs (``SENTINEL FAILOVER``)
leaves the old master running, and taking writes, for some ten seconds; then it is made a replica and forgets them. So each
Sentinel is subscribed to. The one in charge says first that it is about to promote a replica: from then on nothing is sent to the
old master. As soon as the new one has confirmed it is announced (``+promoted-slave``), and calls go there. The other Sentinels
announce it when the failover is over (``+switch-master``), which may be seconds later.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import hiredis
from hiredis import ReplyError

from oncegate.cache.errors import CacheError, CacheUnavailable
from oncegate.cache.redis.connection import faults
from oncegate.cache.redis.connection.connect import OnLost, OnPlace, Peer, RedisConnector, place_of
from oncegate.cache.redis.connection.pipe import Bounds, PipelinedConnection, Reply
from oncegate.cache.redis.scripts import pack
from oncegate.cache.redis.url import Server, ServersUrl

log = logging.getLogger(__name__)

OnMaster = Callable[[Server | None], None]

QUIET = 5.0
"""Seconds of silence until a Sentinel is pinged; after twice that it counts as gone."""
PAUSE = 1.0
"""Seconds until a Sentinel that was lost is tried again."""

_MESSAGES = {
    b"+failover-state-send-slaveof-noone": re.compile(r"slave .* @ (?P<service>.*) \S+ \d+"),
    b"+promoted-slave": re.compile(r"slave .* (?P<host>\S+) (?P<port>\d+) @ (?P<service>.*) \S+ \d+"),
    b"+switch-master": re.compile(r"(?P<service>.*) \S+ \d+ (?P<host>\S+) (?P<port>\d+)"),
}
"""Messages of Sentinels about a master that is about to change (without a host), and about the new one."""
_SUBSCRIBE = pack(b"SUBSCRIBE", *_MESSAGES)
_PING = pack(b"PING")


class MasterConnector:
    """The `Opener` for the master of ``address.service``; ``connector`` knows how to log in to it.

    Raises ``ValueError`` for options that can't be used, without credentials in the text.
    """

    def __init__(self, address: ServersUrl, connector: RedisConnector, timeout: float) -> None:
        self.place = f"the service {address.service} of Sentinel"
        self._address = address
        self._connector = connector
        self._timeout = timeout

    async def open(self, bounds: Bounds, on_lost: OnLost, timeout: float) -> tuple[PipelinedConnection, Peer]:
        """See `Opener.open`."""
        fault: CacheError = CacheUnavailable(f"no Sentinel knows a master of {self._address.service}")
        tried: set[Server] = set()
        answers = [asyncio.ensure_future(self._fetch_master(sentinel)) for sentinel in self._address.servers]
        try:
            for answer in asyncio.as_completed(answers):
                master = await answer
                if isinstance(master, CacheError):
                    fault = fault if tried else master  # the server's own word counts more than a Sentinel's
                elif master not in tried:
                    tried.add(master)
                    connector = self._connector.to(*master)
                    try:
                        pipeline, peer = await connector.open(bounds, on_lost, timeout)
                    except CacheUnavailable as error:
                        fault = error
                        continue
                    if peer.role == "master":
                        return pipeline, peer
                    pipeline.fail(faults.REPLICA)
                    fault = CacheUnavailable(
                        f"Redis at {connector.place} is a replica, and no Sentinel names another master"
                    )
        finally:
            for each in answers:
                each.cancel()
            await asyncio.gather(*answers, return_exceptions=True)
        raise fault

    def watches(self, on_place: OnPlace) -> Sequence[Coroutine[Any, Any, None]]:
        """See `Opener.watches`."""
        address = self._address
        return [
            watch(
                self._connector.to_sentinel(*sentinel, address.login),
                address.service,
                partial(self._fetch_master, sentinel),
                lambda master: on_place(place_of(master) if master else None),
            )
            for sentinel in address.servers
        ]

    async def _fetch_master(self, server: Server) -> Server | CacheError:
        """The master, as one Sentinel knows it; never raises a `CacheError`, but returns it."""
        service, place = self._address.service, f"Sentinel at {place_of(server)}"
        pipeline = PipelinedConnection(Bounds(), lambda *_: None)
        try:
            pipeline.take_over(await self._connector.to_sentinel(*server, self._address.login).connect())
            # Not SENTINEL MASTERS, which redis-py's client sends: in a failover, that one names the old master for longer.
            question = pack(b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", service.encode())
            reply = await pipeline.send(question, asyncio.get_running_loop().time() + self._timeout)
        except CacheError as error:
            return CacheUnavailable(f"{place}: {error}")
        finally:
            pipeline.fail("it was for one question")
        if isinstance(reply, ReplyError):
            return CacheUnavailable(f"{place}: {faults.of_reply(reply)}")
        if reply is None:
            return CacheUnavailable(f"{place} does not know a service {service}")
        return reply[0].decode(), int(reply[1])


async def watch(
    connector: RedisConnector,
    service: str,
    fetch: Callable[[], Awaitable[Server | CacheError]],
    on_master: OnMaster,
) -> None:
    """Call ``on_master`` with the master that a Sentinel names (``fetch``), each new one, and ``None`` when one is about to come.

    Until cancelled; never raises.
    """

    def on_message(reply: Reply) -> None:
        if isinstance(reply, list) and reply[0] == b"message":
            found = _MESSAGES[reply[1]].fullmatch(reply[2].decode())
            if found is not None and found["service"] == service:
                on_master((found["host"], int(found["port"])) if "host" in found.groupdict() else None)

    while True:
        listener = _Listener(on_message)
        try:
            listener.take_over(await connector.connect())
            await listener.subscribed
            # Only after subscribing, so that no switch is missed between the two.
            master = await fetch()
            if not isinstance(master, CacheError):
                on_master(master)
            await listener.listen()
        except Exception as error:  # noqa: BLE001  # uvloop raises its own where the other side has left, and nobody else watches
            log.debug("%s", error)
        finally:
            listener.close()
        await asyncio.sleep(PAUSE)


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
