"""How streams of commands stand, for operators: their length, who reads them, and how far behind each reader is."""

from typing import Any, Final

from oncegate.app.operators.letters.dead_letters import Commands
from oncegate.cache.redis.streams.entry_id import added_at_ms
from oncegate.cache.redis.streams.progress import consumers, oldest_ms
from oncegate.cache.redis.streams.stream import CommandStream, GroupProgress
from oncegate.middleware.outcome.instants import instant

MOST_WORKERS: Final = 100
"""Workers of a group that are shown, those that hold most."""


async def stream_state(commands: Commands) -> dict[str, Any]:
    """The length of a stream, its oldest entry, its dead letters, and its ``groups``: the consumers that read it.

    Raises `oncegate.cache.errors.CacheError`.
    """
    stream = commands.stream
    groups = sorted(await stream.groups(), key=lambda group: (group.name != commands.consumer, group.name))
    return {
        "stream": stream.name,
        "consumer": commands.consumer,
        "length": await stream.length(),
        "oldest_at": instant(await oldest_ms(stream) or 0),
        "dead": await stream.dead(),
        "trimmed": await stream.trimmed(),
        "groups": [await _group(stream, group) for group in groups],
    }


async def _group(stream: CommandStream, group: GroupProgress) -> dict[str, Any]:
    workers = await consumers(stream, group.name)
    oldest = await stream.oldest_needed(group.name)
    return {
        "name": group.name,
        "lag": group.unread,
        "pending": group.pending,
        "oldest_at": None if oldest is None else instant(added_at_ms(oldest) or 0),
        "workers": [
            {"name": worker.name, "pending": worker.pending, "silent_for": worker.idle_ms / 1000}
            for worker in workers[:MOST_WORKERS]
        ],
        "more_workers": max(0, len(workers) - MOST_WORKERS),
    }
