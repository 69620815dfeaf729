"""The worker's loops go on after a fault of ours; on a real stream."""

import asyncio
from collections.abc import Mapping, Sequence
from uuid import uuid4

import pytest

from oncegate.app.commands.processing import DONE, Disposition
from oncegate.app.commands.worker import Worker
from oncegate.cache.redis.streams.commands import run_command, stream_client
from oncegate.cache.redis.streams.group import Group, LetterLimits
from oncegate.cache.redis.streams.stream import CommandStream
from testing.waiting import until


async def test_what_is_executed_is_refreshed_again_after_a_fault(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else all that this worker holds looks abandoned from then on."""
    client, reading = (stream_client(redis_url, timeout=60) for _ in range(2))
    stream = CommandStream(client, uuid4().hex, "commands")
    keep, kept = Group.keep, 0
    executed = asyncio.Event()

    async def fail_at_first(group: Group, entries: Sequence[bytes]) -> None:
        nonlocal kept
        kept += 1
        if kept == 1:
            raise ArithmeticError
        await keep(group, entries)

    async def process(
        entry: bytes,  # the protocol names them
        fields: Mapping[bytes, bytes],
        tries: int,
    ) -> Disposition:
        await executed.wait()
        return DONE

    monkeypatch.setattr(Group, "keep", fail_at_first)
    group = Group(stream, reading, "commands", "worker", LetterLimits(10, 60_000))
    worker = Worker(group, process, concurrency=1, idle=0.4, trim=lambda: asyncio.sleep(0))
    await run_command(client, "XADD", stream.key, "*", "a", "b")
    running = asyncio.create_task(worker.run(60))
    await until(lambda: kept >= 3)
    executed.set()
    worker.stop()
    assert await running == 0
    for each in (client, reading):
        await each.close()
