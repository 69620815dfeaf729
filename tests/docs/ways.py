"""Which modules a request goes through in the gateway, from its first byte to the last of its answer, by tracing real ones;
and a delivery in a worker, from the entry that it takes until its record is complete and the entry is acknowledged.

    python -m tests.docs.ways

writes them anew into docs/architecture.md.
"""

import asyncio
import math
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch
from uuid import uuid4

from oncegate.app.commands.handler import Handler
from oncegate.app.factory import create_cache
from oncegate.app.processes import STOPPING
from oncegate.app.settings.gateway import GatewaySettings
from oncegate.app.work import _work
from oncegate.cache.redis.store import RedisCache
from oncegate.cache.redis.streams import memory
from oncegate.cache.redis.streams.stream import stream_key
from oncegate.middleware.consumers.command_context import CommandContext
from testing.servers import RedisServer
from testing.upstreams import OK, Upstream, answering
from testing.waiting import until
from tests.app.fast_path import Talk, gateway_at, keyed, request

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
_OURS = tuple(f"{ROOT / folder}/" for folder in ("app", "middleware", "cache"))
LATER = {"path": "/later", "mode": "async", "on_missing_key": "reject"}


@contextmanager
def traced() -> Iterator[set[str]]:
    """The files of ours in which a function is called meanwhile, relative to the checkout."""
    found: set[str] = set()
    paths: dict[str, str | None] = {}

    def name(file: str) -> str | None:
        path = str(Path(file).resolve())
        return path.removeprefix(f"{ROOT}/") if path.startswith(_OURS) else None

    def called(frame: FrameType, event: str, _argument: object) -> None:
        if event != "call":
            return
        file = frame.f_code.co_filename
        if file not in paths:
            paths[file] = name(file)
        if (path := paths[file]) is not None:
            found.add(path)

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        yield found
    finally:
        sys.setprofile(before)


async def _way(talk: Talk, data: bytes) -> list[str]:
    with traced() as found:
        await talk.exchange(data)
        await asyncio.sleep(0)
    return sorted(found)


async def ways(redis: RedisServer) -> dict[str, list[str]]:
    """The modules by the kind of request. Connections and scripts are there before, as they are for nearly all requests."""
    namespace = uuid4().hex
    async with (
        Upstream([answering(OK)] * 9) as upstream,
        gateway_at(upstream.url, redis.url, namespace=namespace, routes=[LATER]) as (talk, _, _),
    ):
        for data in (request("GET"), request("GET"), keyed("warm"), keyed("warm"), keyed("warm-later", path="/later")):
            await talk.exchange(data)
        # Redis's memory has been sampled: the next sample is taken for whatever submission comes when it is due.
        with patch.object(memory, "SAMPLE_SECONDS", math.inf):
            found = {
                "passes": await _way(talk, request("GET")),
                "first request": await _way(talk, keyed("k")),
                "retry": await _way(talk, keyed("k")),
                "submission": await _way(talk, keyed("k-later", path="/later")),
            }
        return found | {"delivery": await _delivery(redis, namespace)}


async def _delivery(redis: RedisServer, namespace: str) -> list[str]:
    """The way of a copy of what was submitted, appended by another client. The worker has processed others before."""
    given = {"cache": redis.url, "namespace": namespace, "upstream": "http://127.0.0.1:1", "cache_timeout": 10}
    settings = GatewaySettings.model_validate({**given, "routes": [LATER]})
    cache = create_cache(settings)
    assert isinstance(cache, RedisCache)
    client, stream, done = redis.client(), stream_key(namespace, "commands"), list[str]()
    entries: Any = client.xrange(stream)
    entry = {**entries[-1][1], b"key": b"new", b"command": b"k" * 20 + b":" + b"s" * 20}

    async def handle(_: bytes, context: CommandContext) -> None:
        done.append(context.key)

    def acknowledged(count: int) -> bool:
        held: Any = client.xpending(stream, "commands")
        return len(done) == count and held["pending"] == 0

    working = asyncio.create_task(_work(settings, Handler(handle, threads=1), cache, nullcontext(), None, None))
    try:
        await until(lambda: bool(client.xinfo_groups(stream)) and acknowledged(2), "the worker is warm")
        with traced() as found:
            client.xadd(stream, entry)
            await until(lambda: acknowledged(3), "it is acknowledged")
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        for number in STOPPING:
            asyncio.get_running_loop().remove_signal_handler(number)
    return sorted(found)


def written(found: dict[str, list[str]]) -> str:
    """They as a table of Markdown."""
    lines = ["| request | modules | which, by room |", "| --- | --- | --- |"]
    for kind, modules in found.items():
        by_room: dict[str, list[str]] = {}
        for module in modules:
            room, _, name = module.rpartition("/")
            by_room.setdefault(room, []).append(name.removesuffix(".py"))
        rooms = "; ".join(f"`{room}/` {', '.join(names)}" for room, names in by_room.items())
        lines.append(f"| {kind} | {len(modules)} | {rooms} |")
    return "\n".join(lines)


def main() -> None:
    """Write the table anew."""
    assert threading.current_thread() is threading.main_thread()
    with RedisServer("unix") as redis:
        table = written(asyncio.run(ways(redis)))
    text = PAGE.read_text("utf-8")
    head, begin, rest = text.partition("<!-- ways -->\n")
    _, end, tail = rest.partition("<!-- /ways -->")
    assert begin, "docs/architecture.md has no place for it"
    PAGE.write_text(f"{head}{begin}{table}\n{end}{tail}", "utf-8")


if __name__ == "__main__":
    main()
