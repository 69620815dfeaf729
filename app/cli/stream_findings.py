"""What ``oncegate check`` finds about the command streams: how full each is, who reads it, and who is missing or behind."""

import asyncio

from oncegate.app.settings.gateway import GatewaySettings
from oncegate.cache.redis.streams.client import StreamClient
from oncegate.cache.redis.streams.memory import StreamMemory
from oncegate.cache.redis.streams.stream import CommandStream, GroupProgress

FAR_BEHIND = 0.5
"""Of a stream's limit: a group with as many entries still to read is far behind, and submissions will soon be refused."""


def _shown(group: GroupProgress) -> str:
    unread = "an unknown number" if group.unread is None else str(group.unread)
    return f"{group.name} has {unread} to read and {group.pending} to acknowledge"


def judge(
    name: str, consumer: str, limit: int, dead: int, groups: list[GroupProgress], memory: StreamMemory
) -> tuple[list[str], str]:
    """Advice about one stream, a line each; and how it stands, in one line. Pure."""
    advice = []
    if all(group.name != consumer for group in groups):
        advice.append(
            f"stream {name}: nobody has begun to read it as {consumer}, so its commands wait: start oncegate worker, "
            f"or set the route's consumer to the name that reads it"
        )
    for group in groups:
        waiting = (group.unread or 0) + group.pending
        if waiting >= FAR_BEHIND * limit:
            advice.append(
                f"stream {name}: {_shown(group)}, of {limit} that the stream may hold: start more workers, or remove the "
                "group if nobody reads with it any more (XGROUP DESTROY)"
            )
    if not memory.suffices:
        advice.append(
            f"stream {name}: of Redis's {memory.most} bytes {memory.used} are used, and {memory.reserved} are kept for what was "
            "accepted, so submissions are refused: start more workers, or raise maxmemory"
        )
    if dead:
        advice.append(f"stream {name} has given up commands, {dead} so far: oncegate commands list tells why")
    readers = "; ".join(_shown(group) for group in groups) or "no group reads it"
    room = ""
    if memory.most:
        room = (
            f"; submissions are refused from {memory.most - memory.reserved} bytes in Redis on, {memory.used} are used"
        )
    return advice, f"stream {name}: {memory.entries} entries, at most {limit} ({readers}){room}"


async def look(settings: GatewaySettings) -> list[tuple[list[str], str]]:
    """The findings of `judge` for each stream of the asynchronous routes. Raises `CacheError`."""
    consumers = {route.stream: route.consumer_name for route in settings.routes if route.mode != "sync"}
    if not consumers:
        return []
    client = StreamClient(settings.cache, timeout=settings.cache_timeout)
    try:
        streams = [CommandStream(client, settings.namespace, name) for name in consumers]
        found = await asyncio.gather(*[_look(stream) for stream in streams])
    finally:
        await client.close()
    return [
        judge(name, consumer, settings.stream_limit, *state)
        for (name, consumer), state in zip(consumers.items(), found, strict=True)
    ]


async def _look(stream: CommandStream) -> tuple[int, list[GroupProgress], StreamMemory]:
    return await stream.dead(), await stream.groups(), await stream.memory()
