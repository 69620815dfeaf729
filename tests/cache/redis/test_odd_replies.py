"""Replies that no script of ours gives: whoever asked is told, since nobody would ask Redis again for him."""

import asyncio
from typing import Any

import hiredis
import pytest

from oncegate.cache.errors import CacheUnavailable, RecordUnreadable
from oncegate.cache.record import Claim, ClaimRequest
from oncegate.cache.redis.calls import ClaimCall
from oncegate.cache.redis.store import RedisCache

ODD = [None, 0, 7, b"x", [], [0], [1, None, 5], [0, b"x", None], [0, "x", 5], [0, b"x", 5, 6], [0, b"x", b"5"], b"abc"]


@pytest.mark.parametrize("reply", ODD)
def test_an_odd_reply_to_a_claim_is_told_as_an_unreadable_record(reply: Any) -> None:
    outcomes: list[Claim | Exception] = []
    routes: Any = None  # nothing is asked of them
    claim = ClaimCall(routes, "k", ClaimRequest(bytes(16), bytes(16), 1, 0), None, outcomes.append, None, False)
    claim.answered(reply)
    assert len(outcomes) == 1
    assert isinstance(outcomes[0], RecordUnreadable)


@pytest.mark.parametrize(
    "table", [b":7", b"*1\r\n:7", b"*1\r\n*3\r\n:0\r\n:1\r\n:2", b"*1\r\n*3\r\n+a\r\n:1\r\n*1\r\n$-1"]
)
async def test_an_odd_table_of_a_cluster_is_an_outage(table: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        commands = hiredis.Reader()
        while data := await reader.read(65536):
            commands.feed(data)
            while (command := commands.gets()) is not False:
                greeting = b"*4\r\n+version\r\n+7.2.0\r\n+id\r\n:1"
                writer.write({b"HELLO": greeting, b"CLUSTER": table}.get(command[0], b"+OK") + b"\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        cache = RedisCache.from_url(f"redis+cluster://127.0.0.1:{port}", timeout=30)
        with pytest.raises(CacheUnavailable, match=f"127.0.0.1:{port} does not answer as a Redis Cluster does"):
            await cache.get("k")
        await cache.close()
