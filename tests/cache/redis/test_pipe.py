"""Commands that wait because the other side doesn't read: each arrives as it was given, in order, and has its own reply."""

import asyncio
import contextlib

import hiredis

from oncegate.cache.redis.connection.pipe import EARLY, Bounds, PipelinedConnection
from oncegate.cache.redis.scripts import pack

MANY = 6 * EARLY
SIZE = 262144
"""Of each: all of them are more than the kernel takes for a side that doesn't read."""


async def test_what_waits_to_be_sent_is_sent_as_it_was_given() -> None:
    reads, over, came = asyncio.Event(), asyncio.Event(), list[list[bytes]]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reads.wait()
        parser = hiredis.Reader()
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                parser.feed(data)
                while (command := parser.gets()) is not False:
                    came.append(command)
                    writer.write(b":%d\r\n" % len(came))
        writer.transport.abort()
        await asyncio.sleep(0)
        over.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        pipe = PipelinedConnection(Bounds(patience=600), lambda *_: None)
        pipe.take_over(writer)
        given = [[b"SET", b"%d" % number, bytes([number]) * SIZE] for number in range(MANY)]
        replies = []
        for number, command in enumerate(given):
            replies.append(pipe.send(pack(*command), pipe.time() + 600))
            if number % (EARLY + 3) == 0:
                await asyncio.sleep(0)  # some are written at the end of a tick, others before
        assert writer.transport.get_write_buffer_size() > SIZE, "the kernel has taken it all: it proves nothing"
        reads.set()
        assert await asyncio.gather(*replies) == list(range(1, MANY + 1))
        assert came == given
        pipe.fail("it is over")
        await over.wait()
