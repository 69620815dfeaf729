"""The topology of a Sentinel service: opens connections to the server that is the master at the moment.

Strategy. Each time a connection is opened, all Sentinels are asked at once who the master is, so that one that is down or
hangs costs no time. An answer is only believed when the server itself says, on the new connection, that it is a master:
a Sentinel may lag behind. Where it is a replica, the next different answer is tried.

A connection lives until it breaks, a reply says that the server has become a replica, or a Sentinel announces another master
(`oncegate.cache.redis.connection.watch`); then all this happens again.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any

from hiredis import ReplyError

from oncegate.cache.errors import CacheError, CacheUnavailable
from oncegate.cache.redis.connection import faults
from oncegate.cache.redis.connection.connect import Dialler, OnLost, OnPlace, Peer, place_of
from oncegate.cache.redis.connection.pipe import Bounds, Link
from oncegate.cache.redis.connection.watch import watch
from oncegate.cache.redis.scripts import pack
from oncegate.cache.redis.url import Address, Server


class MasterDialler:
    """The `Opener` for the master of ``address.service``; ``dialler`` knows how to log in to it.

    Raises ``ValueError`` for options that can't be used, without credentials in the text.
    """

    def __init__(self, address: Address, dialler: Dialler, timeout: float) -> None:
        self.place = f"the service {address.service} of Sentinel"
        self._address = address
        self._dialler = dialler
        self._timeout = timeout

    async def open(self, bounds: Bounds, on_lost: OnLost, timeout: float) -> tuple[Link, Peer]:
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
                    dialler = self._dialler.to(*master)
                    try:
                        link, peer = await dialler.open(bounds, on_lost, timeout)
                    except CacheUnavailable as error:
                        fault = error
                        continue
                    if peer.role == "master":
                        return link, peer
                    link.fail(faults.REPLICA)
                    fault = CacheUnavailable(
                        f"Redis at {dialler.place} is a replica, and no Sentinel names another master"
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
                self._dialler.to_sentinel(*sentinel, address.login),
                address.service,
                partial(self._fetch_master, sentinel),
                lambda master: on_place(place_of(master) if master else None),
            )
            for sentinel in address.servers
        ]

    async def _fetch_master(self, server: Server) -> Server | CacheError:
        """The master, as one Sentinel knows it; never raises a `CacheError`, but returns it."""
        service, place = self._address.service, f"Sentinel at {place_of(server)}"
        link = Link(Bounds(), lambda *_: None)
        try:
            link.take_over(await self._dialler.to_sentinel(*server, self._address.login).connect())
            # Not SENTINEL MASTERS, which redis-py's client asks: in a failover, that one names the old master for longer.
            question = pack(b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", service.encode())
            reply = await link.send(question, asyncio.get_running_loop().time() + self._timeout)
        except CacheError as error:
            return CacheUnavailable(f"{place}: {error}")
        finally:
            link.fail("it was for one question")
        if isinstance(reply, ReplyError):
            return CacheUnavailable(f"{place}: {faults.of_reply(reply)}")
        if reply is None:
            return CacheUnavailable(f"{place} does not know a service {service}")
        return reply[0].decode(), int(reply[1])
