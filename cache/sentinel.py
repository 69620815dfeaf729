"""Connections to the master of a Sentinel service, whichever server that is at the moment.

Strategy. Each time a connection is opened, all Sentinels are asked at once who the master is, so that one that is down or
hangs costs no time. An answer is only believed when the server itself says, on the new connection, that it is a master:
a Sentinel may lag behind. Where it is a replica, the next different answer is tried.

A connection lives until it breaks, a reply says that the server has become a replica, or a Sentinel announces another master
(`oncegate.cache.watch`); then all this happens again.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from oncegate.cache import faults
from oncegate.cache.address import Address, Server
from oncegate.cache.dial import Dialler, OnLost, Peer, place_of
from oncegate.cache.errors import CacheError, CacheUnavailable
from oncegate.cache.link import Bounds, Link
from oncegate.cache.watch import watch


class MasterDialler:
    """The `Opener` for the master of ``address.service``; ``dialler`` knows how to log in to it.

    Raises ``ValueError`` for options that can't be used, without credentials in the text.
    """

    def __init__(self, address: Address, dialler: Dialler, timeout: float) -> None:
        self.place = f"the service {address.service} of Sentinel"
        self._address = address
        self._dialler = dialler
        self._options: dict[str, Any] = {
            **dialler.encryption,
            **address.login,
            "protocol": 2,
            "socket_timeout": timeout,
            "socket_connect_timeout": timeout,
            "retry": Retry(NoBackoff(), 0),
        }

    async def open(self, bounds: Bounds, on_lost: OnLost, timeout: float) -> tuple[Link, Peer]:
        """See `Opener.open`."""
        fault: CacheError = CacheUnavailable(f"no Sentinel knows a master of {self._address.service}")
        tried: set[Server] = set()
        asked = [asyncio.ensure_future(self._ask(sentinel)) for sentinel in self._address.servers]
        try:
            for answer in asyncio.as_completed(asked):
                master = await answer
                if isinstance(master, CacheError):
                    fault = fault if tried else master  # what a server says weighs more than what a Sentinel does
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
            for each in asked:
                each.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        raise fault

    def watches(self, on_place: Callable[[str], None]) -> Sequence[Coroutine[Any, Any, None]]:
        """See `Opener.watches`."""
        service = self._address.service
        return [
            watch(sentinel, self._options, service, lambda master: on_place(place_of(master)))
            for sentinel in self._address.servers
        ]

    async def _ask(self, server: Server) -> Server | CacheError:
        sentinel = Sentinel([server], sentinel_kwargs=self._options)  # type: ignore[no-untyped-call] # not annotated
        client: Redis = sentinel.sentinels[0]
        place = place_of(server)
        try:
            # Not `discover_master`: of a Sentinel that can't be reached, it only says that it knows no master.
            masters: Any = await client.sentinel_masters()
        except (RedisError, OSError) as error:
            return faults.of_opening(error, f"{place} (Sentinel)")
        finally:
            await sentinel.aclose()
        state = masters.get(self._address.service)
        if state is None:
            return CacheUnavailable(f"Sentinel at {place} does not know a service {self._address.service}")
        if not sentinel.check_master_state(state, self._address.service):
            return CacheUnavailable(f"Sentinel at {place} has lost the master of {self._address.service}")
        return str(state["ip"]), int(state["port"])
