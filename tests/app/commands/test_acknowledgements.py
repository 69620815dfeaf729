"""What a worker is done with is acknowledged in few steps; on a real stream.

Rules of docs/contract.md: R8.8.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from uuid import uuid4

import pytest

from oncegate.app.commands import acknowledgements
from oncegate.app.commands.acknowledgements import MOST_AT_ONCE, Acknowledgements
from oncegate.cache.errors import CacheUnavailable
from oncegate.cache.redis.streams.commands import run_command, stream_client
from oncegate.cache.redis.streams.group import Group, LetterLimits
from oncegate.cache.redis.streams.stream import CommandStream
from testing.servers import RedisServer
from testing.waiting import until


class Place:
    """A stream with one group, and what its worker holds."""

    def __init__(self, url: str) -> None:
        self.client, self.reading = (stream_client(url, timeout=60) for _ in range(2))
        self.stream = CommandStream(self.client, uuid4().hex, "commands")
        self.group = Group(self.stream, self.reading, "commands", "worker", LetterLimits(10, 60_000))
        self.held: dict[bytes, int] = {}
        self.failed: list[tuple[list[bytes], Exception]] = []
        self.ending = Acknowledgements(self.group, self.held, self.fail)

    async def fail(self, entries: Sequence[bytes], error: Exception) -> None:
        self.failed.append((list(entries), error))

    async def read(self, count: int) -> list[bytes]:
        for _ in range(count):
            await run_command(self.client, "XADD", self.stream.key, "*", "a", "b")
        entries: list[bytes] = []
        while len(entries) < count:
            entries += [entry for entry, _ in await self.group.read(count, 1)]
        self.held.update(dict.fromkeys(entries, 1))
        return entries

    async def pending(self) -> int:
        return int((await run_command(self.client, "XPENDING", self.stream.key, "commands"))[0])


@pytest.fixture
async def place(redis_server: RedisServer) -> AsyncIterator[Place]:
    made = Place(redis_server.url)
    await made.group.create()
    yield made
    for each in (made.client, made.reading):
        await each.close()


async def test_what_ends_together_is_acknowledged_in_one_step(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    acknowledge = Group.acknowledge

    async def counted(group: Group, entries: Sequence[bytes]) -> int:
        steps.append(len(entries))
        return await acknowledge(group, entries)

    monkeypatch.setattr(Group, "acknowledge", counted)
    for entry in await place.read(MOST_AT_ONCE + 7):
        place.ending.add(entry)
    await until(lambda: not place.held)
    assert steps == [MOST_AT_ONCE, 7]
    assert (await place.pending(), await place.stream.length()) == (0, 0)


async def test_what_waits_is_acknowledged_before_the_worker_leaves(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acknowledgements, "SOON", 3600.0)
    place.ending.add((await place.read(1))[0])
    assert await place.pending() == 1
    await place.ending.flush()
    assert (await place.pending(), place.held) == (0, {})
    await place.ending.flush()  # there is nothing left


@pytest.mark.parametrize("error", [CacheUnavailable("away"), ArithmeticError("a fault of ours")])
async def test_what_could_not_be_acknowledged_is_told_and_still_held(
    place: Place, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def fail(*_: object) -> int:
        raise error

    entries = await place.read(3)
    monkeypatch.setattr(Group, "acknowledge", fail)
    for entry in entries:
        place.ending.add(entry)
    await place.ending.flush()
    assert place.failed == [(entries, error)]
    assert list(place.held) == entries


async def test_an_entry_that_another_group_needs_stays(place: Place) -> None:
    stream, own = place.stream, place.group
    for name in ("read", "unread"):
        await run_command(place.client, "XGROUP CREATE", stream.key, name, "0")
    entries = await place.read(4)
    other = Group(stream, place.reading, "read", "worker", LetterLimits(10, 60_000))
    await other.read(3, 1)
    assert await own.acknowledge(entries) == 4
    assert await stream.length() == 4, "nobody but the first group has acknowledged anything"
    assert await other.acknowledge(entries[:2]) == 2
    assert await stream.length() == 4, "the third group has read nothing"
    await run_command(place.client, "XGROUP DESTROY", stream.key, "unread")
    assert await other.acknowledge(entries[2:3]) == 1
    assert [entry for entry, _ in await run_command(place.client, "XRANGE", stream.key, "-", "+")] != entries
    assert await stream.length() == 3, "the third entry is nobody's any more; those before it wait for a trim"
    assert await stream.trim() == 2
    assert await stream.length() == 1, "the fourth was not read by the second group"


async def test_what_somebody_else_has_acknowledged_is_not_counted_and_not_removed(place: Place) -> None:
    entries = await place.read(2)
    await run_command(place.client, "XACK", place.stream.key, "commands", entries[0])
    assert await place.group.acknowledge(entries) == 1
    assert [entry for entry, _ in await run_command(place.client, "XRANGE", place.stream.key, "-", "+")] == entries[:1]
    assert await place.group.acknowledge(entries) == 0


async def test_a_group_that_was_set_back_needs_what_it_has_acknowledged(place: Place) -> None:
    entries = await place.read(2)
    await run_command(place.client, "XGROUP SETID", place.stream.key, "commands", "0")
    assert await place.group.acknowledge(entries) == 2
    assert await place.stream.length() == 2


async def test_entries_that_end_while_others_are_under_way_are_acknowledged_too(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    acknowledge, may_go_on = Group.acknowledge, asyncio.Event()

    async def slow(group: Group, entries: Sequence[bytes]) -> int:
        await may_go_on.wait()
        return await acknowledge(group, entries)

    monkeypatch.setattr(Group, "acknowledge", slow)
    monkeypatch.setattr(acknowledgements, "MOST_AT_ONCE", 1)
    first, second = await place.read(2)
    place.ending.add(first)
    place.ending.add(second)
    flushed = asyncio.create_task(place.ending.flush())
    may_go_on.set()
    async with asyncio.timeout(60):
        await flushed
    assert (await place.pending(), place.held) == (0, {})
