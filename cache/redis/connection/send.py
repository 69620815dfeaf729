"""Sends one command to the server that holds its key, and waits for the reply; again where a refusal says that it did not run."""
# Compiled: docs/decisions/0012-compiled.md

import asyncio
from functools import partial
from typing import Final

from hiredis import ReplyError

from oncegate.cache.errors import CacheUnavailable, CacheUnsupported
from oncegate.cache.redis.connection import faults
from oncegate.cache.redis.connection.pipe import Orphan, PipelinedConnection, Reply, forget
from oncegate.cache.redis.connection.reconnecting import SharedConnection
from oncegate.cache.redis.connection.server import MOST_TRIES, Detour, Session
from oncegate.cache.redis.connection.topology import Routes
from oncegate.cache.redis.scripts import ASKING, SCRIPTS

LARGE_BYTES: Final = 65536
"""An outcome of more than this goes over the second connection, so that it does not hold up claims."""


async def send(routes: Routes, key: bytes, packed: bytes, deadline: float, orphan: Orphan | None = None) -> Reply:
    """Send one command to the server that holds ``key``; its reply, an error reply as a value. Raises `CacheUnavailable`."""
    session = routes.holder(key) or await routes.locate(key, deadline)
    connection = session.claims if len(packed) <= LARGE_BYTES else session.bodies
    pipeline = connection.pipeline or await ready(connection, deadline)
    future = pipeline.send(packed, deadline, orphan)
    try:
        reply = await future
    except asyncio.CancelledError:
        _abandon(future, orphan)
        raise
    if isinstance(reply, ReplyError):
        return await persist(routes, session, reply, key, packed, deadline, orphan)
    return reply


async def persist(
    routes: Routes, session: Session, reply: Reply, key: bytes, packed: bytes, deadline: float, orphan: Orphan | None
) -> Reply:
    """The last reply to a command that was refused once: it is sent again where it can be, which is safe, as it did not run."""
    at = Detour(session)
    tries = 1
    while isinstance(reply, ReplyError):
        flushed = faults.reply_class(reply) == "NOSCRIPT"
        if not flushed:
            detour = await routes.detour(reply, key, at.session, tries, deadline)
            if detour is None:
                break
            at = detour
        elif tries == MOST_TRIES:
            break
        connection = at.session.claims if len(packed) <= LARGE_BYTES else at.session.bodies
        pipeline = await ready(connection, deadline)
        if flushed:  # one connection keeps the order: the scripts are loaded when the call comes again
            for script in SCRIPTS:
                forget(pipeline.send(script.load, deadline))
        put = pipeline.send if not at.asking else partial(pipeline.send_behind, ASKING)
        reply = await _answer(put(packed, deadline, orphan), orphan)
        tries += 1
    return reply


async def ready(connection: SharedConnection, deadline: float) -> PipelinedConnection:
    """The open one of ``connection``, opened if need be. Raises `CacheUnavailable`."""
    try:
        return await connection.ready(deadline)
    except CacheUnsupported as error:
        raise CacheUnavailable(str(error)) from error  # final for `check`; for a call, one more way to be down


async def _answer(future: asyncio.Future[Reply], orphan: Orphan | None) -> Reply:
    try:
        return await future
    except asyncio.CancelledError:
        _abandon(future, orphan)
        raise


def _abandon(future: asyncio.Future[Reply], orphan: Orphan | None) -> None:
    """Answered and cancelled within one tick: the reply is in the future and will never be read."""
    if orphan is not None and future.done() and not future.cancelled() and future.exception() is None:
        orphan.came_late(future.result())
