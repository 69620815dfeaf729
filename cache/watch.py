"""Hearing from Sentinel that another server is the master now.

A failover that an operator directs (``SENTINEL FAILOVER``) leaves the old master running, and taking writes, for some ten
seconds; then it is made a replica and forgets them. So waiting for a connection to break is not enough: each Sentinel is
listened to, and what is connected to the old master is cut when the first one announces the new one.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from oncegate.cache.address import Server

log = logging.getLogger(__name__)

CHANNEL = "+switch-master"
QUIET = 5.0
"""Seconds without a word from a Sentinel until it is asked whether it is still there."""
PAUSE = 1.0
"""Seconds until a Sentinel that was lost is tried again."""


async def watch(server: Server, options: dict[str, Any], service: str, on_master: Callable[[Server], None]) -> None:
    """Tell ``on_master`` the master that this Sentinel knows, and each new one. Until cancelled; never raises."""
    while True:
        client: Redis = Redis(host=server[0], port=server[1], **options)
        pubsub = client.pubsub()
        try:
            await pubsub.subscribe(CHANNEL)
            # Only now, so that no switch is missed between the two.
            state: Any = (await _masters(client)).get(service)
            if state is not None:
                on_master((str(state["ip"]), int(state["port"])))
            await _listen(pubsub, service, on_master)
        except (RedisError, OSError) as error:
            log.debug("lost a Sentinel (%s)", type(error).__name__)
        finally:
            await pubsub.aclose()  # type: ignore[no-untyped-call] # redis-py does not annotate it
            await client.aclose()
        await asyncio.sleep(PAUSE)


async def _masters(client: Redis) -> Any:
    return await client.sentinel_masters()


async def _listen(pubsub: Any, service: str, on_master: Callable[[Server], None]) -> None:
    while True:
        message = await pubsub.get_message(ignore_subscribe_messages=True, timeout=QUIET)
        if message is None:
            await pubsub.ping()  # the next read or write fails if it is gone
            continue
        if message["type"] == "message":
            # <service> <old ip> <old port> <new ip> <new port>
            name, _, _, host, port = message["data"].decode().rsplit(" ", 4)
            if name == service:
                on_master((host, int(port)))
