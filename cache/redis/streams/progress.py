"""How a stream's consumers stand: who reads it, how far behind, and why its dead letters were given up."""

from dataclasses import dataclass

from oncegate.cache.errors import GroupMissing
from oncegate.cache.redis.scripts import LETTER_HEADS
from oncegate.cache.redis.streams.commands import run_command, run_script
from oncegate.cache.redis.streams.entry_id import added_at_ms
from oncegate.cache.redis.streams.stream import CommandStream, Fields, entries_of, pairs


@dataclass(frozen=True, slots=True)
class ConsumerProgress:
    """A worker in a group: how many entries it holds, and for how long it has not spoken to Redis."""

    name: str
    pending: int
    idle_ms: int


async def consumers(stream: CommandStream, group: str) -> list[ConsumerProgress]:
    """The workers of ``group``, those that hold most first; none where there is no such group."""
    try:
        found = [pairs(each) for each in await run_command(stream.client, "XINFO CONSUMERS", stream.key, group)]
    except GroupMissing:
        return []
    workers = [
        ConsumerProgress(each[b"name"].decode("utf-8", "replace"), each[b"pending"], each[b"idle"]) for each in found
    ]
    return sorted(workers, key=lambda worker: (-worker.pending, worker.idle_ms, worker.name))


async def oldest_ms(stream: CommandStream) -> int | None:
    """When the oldest entry was added, in Unix ms; ``None`` where there is none, or its id does not say."""
    found = entries_of(await run_command(stream.client, "XRANGE", stream.key, "-", "+", "COUNT", 1))
    return added_at_ms(found[0][0]) if found else None


async def letter_heads(stream: CommandStream, start: str, count: int) -> list[tuple[str, Fields]]:
    """At most ``count`` dead letters from ``start`` on, the newest first: of what, and why, without what they hold."""
    found = entries_of(await run_script(stream.client, LETTER_HEADS, (stream.dead_key,), start, count))
    return [(letter.decode(), fields) for letter, fields in found]
