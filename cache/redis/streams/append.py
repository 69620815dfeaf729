"""Appends an entry to a stream: in one step with its aggregate's next number, if it gets one. By callback, or awaited."""
# Compiled: docs/decisions/0012-compiled.md

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hiredis import ReplyError

from oncegate.cache.callbacks import Then, start
from oncegate.cache.redis.calls import CallbackCall
from oncegate.cache.redis.client import RedisClient
from oncegate.cache.redis.connection import faults
from oncegate.cache.redis.connection.pipe import Reply
from oncegate.cache.redis.connection.topology import Routes
from oncegate.cache.redis.scripts import APPEND, APPEND_NUMBERED


class Numbering(NamedTuple):
    """The arguments of a numbered entry.

    ``aggregate`` and ``command`` are their fields in the hash ``numbers``. ``expected`` is the number that the aggregate is to
    be at: ``b"*"`` for any but none, nothing for whichever it is. A command that was appended up to ``known_ms`` ago is still
    known; ``kept_ms`` is how long that is kept.
    """

    numbers: bytes
    aggregate: bytes
    command: bytes
    expected: bytes
    known_ms: int
    kept_ms: int


class Appended(NamedTuple):
    """An entry's id, and the number that it got from a `Numbering`; ``None`` without one.

    Without an id nothing was appended: the aggregate is at ``number``, which is not the one expected.
    """

    entry: str
    number: int | None


class AppendCall(CallbackCall[Appended | None]):
    """An entry of ``fields`` for a stream of at most ``limit``; with a ``numbering``, under its aggregate's next number."""

    __slots__ = ("_is_numbered",)

    def __init__(
        self,
        routes: Routes,
        stream: str,
        fields: Iterable[bytes],
        limit: int,
        numbering: Numbering | None,
        then: Then[Appended | None] | None,
    ) -> None:
        self.routes = routes
        self.key = stream.encode()
        self._then = then
        self._is_numbered = numbering is not None
        if numbering is None:
            self.packed = APPEND.call(self.key, b"%d" % limit, *fields)
        else:
            times = b"%d %d" % (numbering.known_ms, numbering.kept_ms)
            head = (numbering.numbers, b"%d" % limit, numbering.expected, times, numbering.aggregate, numbering.command)
            self.packed = APPEND_NUMBERED.call(self.key, *head, *fields)

    def read(self, reply: Reply) -> Appended | None:
        """The entry's place, or what is in its way; ``None`` where the stream is full. Raises `CacheRefused`."""
        if isinstance(reply, ReplyError):
            raise faults.of_append_reply(reply)
        if reply is None:
            return None
        parts = str(reply, "ascii").split(" ")
        if not self._is_numbered:
            return Appended(parts[0], None)
        return Appended(parts[0] if len(parts) > 1 else "", int(parts[-1]))


async def append_entry(
    client: RedisClient, stream: str, fields: Iterable[bytes], *, limit: int, numbering: Numbering | None = None
) -> Appended | None:
    """Append an entry to the stream under a Redis key; ``None`` where ``limit`` entries are needed already.

    ``fields`` are names and values in turn. With a ``numbering`` it gets its aggregate's next number, in the same step.
    ``client`` is the records', so that the entry arrives where the record of the same command is: another one might still be
    connected to an old master, which takes writes until it is demoted.

    Raises `CacheRefused`: nothing was appended; other `CacheUnavailable`: the entry may be there or not.
    """
    call = AppendCall(await client.opened(), stream, fields, limit, numbering, None)
    return call.read(await client.reply(call))


def start_append(
    client: RedisClient,
    stream: str,
    fields: Sequence[bytes],
    *,
    limit: int,
    numbering: Numbering | None,
    loop: asyncio.AbstractEventLoop,
    then: Then[Appended | None],
) -> None:
    """The same by callback. It takes a task where a connection is to be opened."""
    routes = client.routes.get(loop)
    if routes is None or not AppendCall(routes, stream, fields, limit, numbering, then).send(client.timeout):
        start(loop, append_entry(client, stream, fields, limit=limit, numbering=numbering), then)
