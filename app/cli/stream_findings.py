"""What ``oncegate check`` finds about the command streams: how full each is, who reads it, and who is missing or behind."""

import asyncio
from dataclasses import dataclass
from typing import Any

from oncegate.app.settings.gateway import GatewaySettings
from oncegate.cache.errors import CacheError
from oncegate.cache.redis.streams.client import REDIS_ERRORS, create_client
from oncegate.cache.redis.streams.memory import StreamMemory
from oncegate.cache.redis.streams.stream import CommandStream

FAR_BEHIND = 0.5
"""Of a stream's limit: a group with as many entries still to read is far behind, and submissions will soon be refused."""


@dataclass(frozen=True, slots=True)
class Readers:
    """A consumer group: how many entries it has not read (``None``: Redis can't tell), and how many not acknowledged."""

    name: str
    unread: int | None
    pending: int

    @property
    def text(self) -> str:
        """In words."""
        unread = "an unknown number" if self.unread is None else str(self.unread)
        return f"{self.name} has {unread} to read and {self.pending} to acknowledge"


def judge(
    name: str, consumer: str, limit: int, dead: int, groups: list[Readers], memory: StreamMemory
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
                f"stream {name}: {group.text}, of {limit} that the stream may hold: start more workers, or remove the "
                "group if nobody reads with it any more (XGROUP DESTROY)"
            )
    if not memory.suffices:
        advice.append(
            f"stream {name}: of Redis's {memory.most} bytes {memory.used} are used, and {memory.reserved} are kept for what was "
            "accepted, so submissions are refused: start more workers, or raise maxmemory"
        )
    if dead:
        advice.append(f"stream {name} has given up commands, {dead} so far: oncegate commands list tells why")
    readers = "; ".join(group.text for group in groups) or "no group reads it"
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
    client = create_client(settings.cache, timeout=settings.cache_timeout)
    try:
        streams = [CommandStream(client, settings.namespace, name) for name in consumers]
        found = await asyncio.gather(*[_look(stream) for stream in streams])
    finally:
        await client.aclose()
    return [
        judge(name, consumer, settings.stream_limit, *state)
        for (name, consumer), state in zip(consumers.items(), found, strict=True)
    ]


async def _look(stream: CommandStream) -> tuple[int, list[Readers], StreamMemory]:
    client: Any = stream.client  # a reply's many possible shapes are of no interest here
    try:
        dead = int(await client.xlen(stream.dead_key))
        # Redis answers an error for a stream that isn't there.
        replies = await client.xinfo_groups(stream.key) if await client.exists(stream.key) else []
    except REDIS_ERRORS as error:
        raise CacheError(f"the stream can't be looked at ({type(error).__name__})") from error
    groups = [Readers(each["name"].decode(), each.get("lag"), int(each["pending"])) for each in replies]
    return dead, groups, await stream.memory()
