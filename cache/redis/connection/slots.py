"""Fetches a cluster's table of slots and their owners from its nodes."""

import asyncio
from collections.abc import Mapping

from hiredis import ReplyError

from oncegate.cache.errors import CacheError, CacheUnavailable, CacheUnsupported
from oncegate.cache.redis.connection import faults
from oncegate.cache.redis.connection.pipe import Reply
from oncegate.cache.redis.connection.server import Session
from oncegate.cache.redis.scripts import pack
from oncegate.cache.redis.url import Server

Table = list[tuple[int, int, Server]]
"""Ranges of slots, first and last, each with the master that owns them."""

_CLUSTER_SLOTS = pack(b"CLUSTER", b"SLOTS")


async def fetch_table(nodes: Mapping[Server, Session], deadline: float) -> Table | CacheError:
    """The first table that any of ``nodes`` sends, which are asked at once; or why there is none."""
    fetches = [asyncio.ensure_future(_fetch(server, session, deadline)) for server, session in nodes.items()]
    fault: CacheError = CacheUnavailable("no node of the Redis Cluster can be reached")
    try:
        for answer in asyncio.as_completed(fetches):
            found = await answer
            if not isinstance(found, CacheError):
                return found
            fault = found
    finally:
        for each in fetches:
            each.cancel()
        await asyncio.gather(*fetches, return_exceptions=True)
    return fault


async def _fetch(server: Server, session: Session, deadline: float) -> Table | CacheError:
    try:
        link = await session.claims.ready(deadline)
        reply = await link.send(_CLUSTER_SLOTS, deadline)
    except CacheError as error:
        return error
    if isinstance(reply, ReplyError):
        if faults.reply_class(reply) == "ERR":
            return CacheUnsupported(f"Redis at {session.place} is not part of a cluster: use redis://")
        return faults.of_reply(reply)
    table = read_table(reply, server)
    return table or CacheUnavailable(f"Redis at {session.place} knows of no slots: is the cluster set up?")


def read_table(reply: Reply, source: Server) -> Table:
    """Parse a reply to ``CLUSTER SLOTS``. A node that does not know its own host leaves it out: it is the one that replied."""
    table = []
    for first, last, master, *_ in reply:
        host = master[0].decode() if master[0] else ""
        if host != "?":  # a host name that was never announced
            table.append((first, last, (host or source[0], master[1])))
    return table
