"""The command stream in real Redis servers: what an entry holds, what is trimmed, and when a stream is full.

Rules of docs/contract.md: R8.8.
"""

import os
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Self

import pytest
from hiredis import ReplyError

from oncegate.cache.errors import CacheRefused, CacheUnavailable, GroupMissing
from oncegate.cache.redis.connection import faults
from oncegate.cache.redis.store import RedisCache
from oncegate.cache.redis.streams.append import append_entry
from oncegate.cache.redis.streams.commands import run_command, run_command_on, stream_client
from oncegate.cache.redis.streams.stream import Command, CommandStream, Fields, NotACommand, entries_of
from testing.groups import ClusterGroup, SentinelGroup
from testing.servers import RedisServer
from testing.waiting import until

COMMAND = Command(
    command="a" * 20 + ":" + "b" * 20,
    key='a "key"',
    fingerprint=bytes(range(16)),
    method="POST",
    target="/reports/\xe4?a=1",
    route="/reports/*",
    body=b"\x00\xff{}",
    content_type="application/json",
    correlation="c-1",
    traceparent="00-11111111111111111111111111111111-2222222222222222-01",
    accepted_at_ms=1_700_000_000_000,
    headers=(("content-type", "application/json"), ("x-user", "\xe4")),
)


class Stream(CommandStream):
    """A stream that can be appended to as well."""

    def __init__(self, url: str, timeout: float = 10) -> None:
        super().__init__(stream_client(url, timeout=timeout), f"test-{os.urandom(6).hex()}", "commands")
        self.cache = RedisCache.from_url(url, timeout=timeout)

    async def append(self, command: Command, limit: int) -> str | None:
        appended = await append_entry(self.cache.client, self.key, command.parts(), limit=limit)
        return None if appended is None else appended.entry

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.client.close()
        await self.cache.close()


@pytest.fixture
async def stream(redis_server: RedisServer) -> AsyncIterator[Stream]:
    async with Stream(redis_server.url) as made:
        yield made


async def _group(stream: Stream, name: str, start: str = "0") -> None:
    await run_command(stream.client, "XGROUP CREATE", stream.key, name, start, "MKSTREAM")


async def _acknowledge(stream: Stream, group: str, *entries: bytes) -> None:
    await run_command(stream.client, "XACK", stream.key, group, *entries)


async def _append(stream: Stream, count: int, limit: int = 1000) -> list[str]:
    return [await stream.append(COMMAND, limit) or "full" for _ in range(count)]


async def _read(stream: Stream, group: str, count: int) -> list[bytes]:
    words = ("XREADGROUP", "GROUP", group, "reader", "COUNT", count, "STREAMS", stream.key, ">")
    found = await run_command_on(stream.client, stream.key, *words)
    return [entry for entry, _ in found[0][1]] if found else []


async def _entries(stream: Stream) -> list[tuple[bytes, Fields]]:
    return entries_of(await run_command(stream.client, "XRANGE", stream.key, "-", "+"))


async def _left(stream: Stream) -> list[str]:
    return [entry.decode() for entry, _ in await _entries(stream)]


# -- entries


async def test_an_entry_reads_as_the_command_that_was_appended(stream: Stream) -> None:
    entry = await stream.append(COMMAND, 10)
    ((found, fields),) = await _entries(stream)
    assert found.decode() == entry
    assert Command.read(fields) == COMMAND
    assert b"attempts_before" not in fields
    driven_again = replace(COMMAND, attempts_before=7)
    assert Command.read(driven_again.fields()) == driven_again


@pytest.mark.parametrize("size", [0, 9, 10, 99, 100, 254, 255, 256, 257, 1000])
async def test_an_entry_holds_a_body_of_any_size(stream: Stream, size: int) -> None:
    command = replace(COMMAND, body=b"\r" * size)
    await stream.append(command, 10)
    ((_, fields),) = await _entries(stream)
    assert Command.read(fields) == command


@pytest.mark.parametrize(
    "change", [{b"v": b"2"}, {b"fingerprint": b"00"}, {b"accepted_at": b"soon"}, {b"key": b"\xff"}]
)
def test_what_is_no_command_is_refused_in_one_line_without_its_content(change: dict[bytes, bytes]) -> None:
    with pytest.raises(NotACommand) as caught:
        Command.read(COMMAND.fields() | change)
    assert "\n" not in str(caught.value)
    assert "key" not in str(caught.value)


@pytest.mark.parametrize("name", [b"v", b"command", b"key", b"fingerprint", b"method", b"target", b"route", b"body"])
def test_an_entry_that_lacks_a_field_is_refused(name: bytes) -> None:
    fields = COMMAND.fields()
    del fields[name]
    with pytest.raises(NotACommand, match="no version" if name == b"v" else name.decode()):
        Command.read(fields)


def test_an_empty_body_is_a_body() -> None:
    assert Command.read(replace(COMMAND, body=b"").fields()).body == b""


# -- trimming


async def test_without_a_group_nothing_is_trimmed_and_the_stream_gets_full(stream: Stream) -> None:
    entries = await _append(stream, 3, limit=3)
    assert await stream.trim() == 0
    assert await stream.append(COMMAND, 3) is None
    assert await _left(stream) == entries


async def test_a_full_stream_takes_commands_again_once_some_are_acknowledged(stream: Stream) -> None:
    entries = await _append(stream, 3, limit=3)
    await _group(stream, "one")
    read = await _read(stream, "one", 2)
    assert await stream.append(COMMAND, 3) is None  # read, and not acknowledged: needed
    await _acknowledge(stream, "one", read[0])
    fresh = await stream.append(COMMAND, 3)
    assert await _left(stream) == [*entries[1:], fresh]


async def test_what_the_slowest_group_has_not_read_stays(stream: Stream) -> None:
    entries = await _append(stream, 6)
    for group in ("fast", "slow"):
        await _group(stream, group)
        await _acknowledge(stream, group, *await _read(stream, group, 6 if group == "fast" else 2))
    assert await stream.trim() == 2
    assert await _left(stream) == entries[2:]


async def test_what_a_group_has_pending_stays_with_all_that_follows(stream: Stream) -> None:
    entries = await _append(stream, 6)
    for group in ("one", "two"):
        await _group(stream, group)
        read = await _read(stream, group, 6)
        await _acknowledge(stream, group, *(read if group == "one" else [*read[:3], *read[4:]]))
    assert await stream.trim() == 3
    assert await _left(stream) == entries[3:]


async def test_a_group_that_was_set_back_needs_what_it_will_read_again(stream: Stream) -> None:
    entries = await _append(stream, 6)
    await _group(stream, "one")
    read = await _read(stream, "one", 6)
    await _acknowledge(stream, "one", *read[:5])
    await run_command(stream.client, "XGROUP SETID", stream.key, "one", entries[1])
    assert await stream.trim() == 2
    assert await _left(stream) == entries[2:]


async def test_all_goes_once_every_group_has_acknowledged_all(stream: Stream) -> None:
    await _append(stream, 4)
    await _group(stream, "one")
    await _acknowledge(stream, "one", *await _read(stream, "one", 4))
    assert await stream.trim() == 4
    assert await _left(stream) == []


async def test_ids_beyond_what_a_lua_number_holds_are_compared_exactly(stream: Stream) -> None:
    high = 2**64 - 10
    for sequence in range(3):
        await run_command(stream.client, "XADD", stream.key, f"5-{high + sequence}", "v", "1")
    for group, read in (("slow", 2), ("fast", 3)):
        await _group(stream, group)
        await _acknowledge(stream, group, *await _read(stream, group, read))
    await stream.trim()
    assert (await _left(stream))[-2:] == [f"5-{high + 1}", f"5-{high + 2}"]


async def test_appending_trims_now_and_then_by_itself(stream: Stream) -> None:
    await _group(stream, "one")
    for _ in range(3):
        await _append(stream, 90, limit=100_000)
        await _acknowledge(stream, "one", *await _read(stream, "one", 90))
    assert await stream.length() < 190


async def test_a_stream_that_does_not_exist_is_empty(stream: Stream) -> None:
    assert await stream.trim() == 0
    assert await stream.length() == 0


# -- servers


async def _appends_to(url: str) -> None:
    async with Stream(url) as stream:
        first, second = await _append(stream, 2)
        assert second > first
        assert await stream.length() == 2
        await _group(stream, "one", "$")
        assert await stream.trim() == 2


async def test_appends_behind_sentinel(sentinel_group: SentinelGroup) -> None:
    await _appends_to(sentinel_group.url)


async def test_appends_in_a_cluster(cluster_group: ClusterGroup) -> None:
    await _appends_to(cluster_group.url)


async def test_appends_over_tls_with_a_password() -> None:
    with RedisServer("tls", config={"requirepass": "sesame"}) as server:
        await _appends_to(server.url.replace("rediss://", "rediss://:sesame@"))
        with pytest.raises(CacheUnavailable) as caught:
            await _appends_to(server.url.replace("rediss://", "rediss://:wrong@"))
        assert "wrong" not in str(caught.value)


async def test_a_server_that_hangs_is_given_up_on_and_never_asked_twice() -> None:
    with RedisServer() as server:
        async with Stream(server.url) as stream, Stream(server.url, timeout=0.3) as hasty:
            await stream.append(COMMAND, 10)
            server.pause()
            stream.cache.client.timeout = 0.3  # over a connection that stands, for this one alone
            with pytest.raises(CacheUnavailable):
                await stream.append(COMMAND, 10)
            with pytest.raises(CacheUnavailable):
                await hasty.length()
            server.resume()

            async def there() -> bool:
                return server.calls("xadd") == 2

            await until(there)  # the server gets to it late
            assert await stream.length() == 2


async def test_a_cluster_that_is_not_there_is_told_of_like_any_redis() -> None:
    client = stream_client("redis+cluster://127.0.0.1:1", timeout=1)
    try:
        for operation in (
            CommandStream(client, "shop", "commands").trim,
            CommandStream(client, "shop", "commands").length,
        ):
            with pytest.raises(CacheUnavailable):
                await operation()
    finally:
        await client.close()


async def test_a_full_redis_still_trims() -> None:
    with RedisServer() as server:
        async with Stream(server.url) as stream:
            await _append(stream, 4)
            await _group(stream, "one")
            await _acknowledge(stream, "one", *await _read(stream, "one", 4))
            server.command("CONFIG", "SET", "maxmemory", "1")
            with pytest.raises(CacheUnavailable):
                await stream.append(COMMAND, 1000)
            assert await stream.trim() == 4


async def test_a_large_command_is_appended_whole(stream: Stream) -> None:
    large = replace(COMMAND, body=os.urandom(1_048_576))
    await stream.append(large, 10)
    ((_, fields),) = await _entries(stream)
    assert Command.read(fields) == large


async def test_a_script_that_redis_has_forgotten_is_no_obstacle(stream: Stream, redis_server: RedisServer) -> None:
    await stream.append(COMMAND, 10)
    redis_server.command("SCRIPT", "FLUSH")
    await stream.append(COMMAND, 10)
    assert await stream.length() == 2
    redis_server.command("SCRIPT", "FLUSH")
    assert await stream.trim() == 0


@pytest.mark.parametrize(
    "url",
    [
        "memory://",
        "http://redis.example",
        "redis+sentinel://host",
        "redis://:pass@host:port/0",
        "redis://:pass@host/0?no_option=1",
    ],
)
def test_a_url_that_can_not_be_used_is_refused_without_its_credentials(url: str) -> None:
    with pytest.raises(ValueError) as caught:
        stream_client(url, timeout=1)
    assert "pass@" not in str(caught.value)


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        ("NOGROUP No such key 'k' or consumer group 'g'", GroupMissing),
        ("ERR no such key", GroupMissing),
        ("OOM command not allowed when used memory > 'maxmemory'.", CacheRefused),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", CacheRefused),
        ("NOPERM User u has no permissions to run the 'xack' command", CacheRefused),
        ("LOADING Redis is loading the dataset in memory", CacheUnavailable),
        ("READONLY You can't write against a read only replica.", CacheUnavailable),
        ("CLUSTERDOWN The cluster is down", CacheUnavailable),
    ],
)
def test_what_a_refusal_says_of_a_stream(reply: str, kind: type[CacheUnavailable]) -> None:
    """What is over by itself is tried again soon, as an outage; what is not, later; a group that is gone is made anew."""
    error = faults.of_stream_reply(ReplyError(reply))
    assert type(error) is kind
    assert "'k'" not in str(error)
