"""Sends one command to the server that holds its key, and again where a refusal says that it did not run."""
# Compiled: docs/decisions/0012-compiled.md

import asyncio
from functools import partial
from typing import Any, Final, Generic, TypeVar

from hiredis import ReplyError

from oncegate.cache.errors import CacheError, CacheUnavailable, CacheUnsupported, RecordUnreadable
from oncegate.cache.redis.connection import faults
from oncegate.cache.redis.connection.pipe import OVERDUE, Call, Link, Orphan, Reply, forget
from oncegate.cache.redis.connection.reconnecting import SharedConnection
from oncegate.cache.redis.connection.routes import MOST_TRIES, Routes
from oncegate.cache.redis.connection.server import Detour, Session
from oncegate.cache.redis.scripts import ASKING, SCRIPTS
from oncegate.cache.store import Then

LARGE_BYTES: Final = 65536
"""An outcome of more than this goes over the second connection, so that it does not hold up claims."""

Answer = TypeVar("Answer")


async def send(routes: Routes, key: bytes, packed: bytes, deadline: float, orphan: Orphan | None = None) -> Reply:
    """Send one command to the server that holds ``key``; its reply, an error reply as a value. Raises `CacheUnavailable`."""
    session = routes.holder(key) or await routes.locate(key, deadline)
    connection = session.claims if len(packed) <= LARGE_BYTES else session.bodies
    link = connection.link or await ready(connection, deadline)
    future = link.send(packed, deadline, orphan)
    try:
        reply = await future
    except asyncio.CancelledError:
        _abandon(future, orphan)
        raise
    if isinstance(reply, ReplyError):
        return await _persist(routes, session, reply, key, packed, deadline, orphan)
    return reply


def send_soon(call: "Soon[Any]", packed: bytes, timeout: float) -> bool:
    """The same without waiting: ``call`` gets the reply. ``False``: there is no connection, and ``call`` is never used."""
    session = call.routes.holder(call.key)
    if session is None:
        return False
    link = (session.claims if len(packed) <= LARGE_BYTES else session.bodies).link
    if link is None:
        return False
    call.session, call.packed = session, packed
    try:
        link.put(packed, call.routes.loop.time() + timeout, call)
    except CacheUnavailable:
        return False
    return True


class Soon(Call, Generic[Answer]):
    """A command whose answer, or error in its place, is passed to ``then``."""

    __slots__ = ("_then", "key", "packed", "routes", "session")

    session: Session
    packed: bytes

    def __init__(self, routes: Routes, key: bytes, then: Then[Answer] | None) -> None:
        self.routes = routes
        self.key = key
        self._then = then

    def read(self, reply: Reply) -> Answer:
        """The answer that ``reply`` is. Raises the `CacheError` that it stands for."""
        raise NotImplementedError

    def came_late(self, reply: Reply) -> None:
        """The reply came after ``then`` was called for a time-out."""

    def lost(self) -> None:
        """The connection broke; the command may have run."""

    def answered(self, reply: Reply) -> None:
        """See `Call`."""
        then, self._then = self._then, None
        if then is None:
            self.came_late(reply)
        elif isinstance(reply, ReplyError):
            task = self.routes.loop.create_task(self._try_again(reply, then))
            _trying.add(task)
            task.add_done_callback(_trying.discard)
        else:
            answer: Answer | CacheError
            try:
                answer = self.read(reply)
            except CacheError as error:
                answer = error
            except Exception as odd:  # noqa: BLE001 - passed on, whatever it is: else who waits would wait for ever
                answer = RecordUnreadable(f"a reply can't be read ({type(odd).__name__})")
            then(answer)

    async def _try_again(self, refusal: ReplyError, then: Then[Answer]) -> None:
        to, deadline = self.session, self.deadline
        answer: Answer | CacheError
        try:
            answer = self.read(await _persist(self.routes, to, refusal, self.key, self.packed, deadline, self))
        except CacheError as error:
            answer = error
        then(answer)

    def overdue(self) -> None:
        """See `Call`."""
        then, self._then = self._then, None
        if then is not None:
            then(CacheUnavailable(OVERDUE))

    def broken(self, reason: str) -> None:
        """See `Call`."""
        then, self._then = self._then, None
        self.lost()
        if then is not None:
            then(CacheUnavailable(reason))


_trying: set[asyncio.Task[None]] = set()
"""Kept here, since a loop keeps no task alive by itself."""


async def _persist(
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
        link = await ready(connection, deadline)
        if flushed:  # one connection keeps the order: the scripts are loaded when the call comes again
            for script in SCRIPTS:
                forget(link.send(script.load, deadline))
        put = link.send if not at.asking else partial(link.send_behind, ASKING)
        reply = await _answer(put(packed, deadline, orphan), orphan)
        tries += 1
    return reply


async def ready(connection: SharedConnection, deadline: float) -> Link:
    """The link of ``connection``, opened if need be. Raises `CacheUnavailable`."""
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
