"""Exchanges on the fast path that last are noticed, each in its time, by few looks at all connections."""

import asyncio
from collections.abc import Iterator
from typing import Any

from oncegate.app.upstream.connection import UpstreamConnection
from oncegate.app.upstream.lasting import PAUSE, LastingExchanges
from testing.upstreams import PATIENCE

AFTER = 0.2
"""Seconds from which an exchange lasts here."""


class Connections(list[Any]):
    """Some connections, which count how often all of them are looked at."""

    looks = 0

    def __iter__(self) -> Iterator[Any]:
        self.looks += 1
        return super().__iter__()


class Noticed:
    """Awaits a response, and notes when it was called since its exchange lasts. ``raises``: it can't deal with that."""

    def __init__(self, connection: UpstreamConnection, *, raises: bool = False) -> None:
        self.after: asyncio.Future[float] = connection.loop.create_future()
        self.connection = connection
        self._raises = raises
        self._began = connection.loop.time()
        connection.then = self

    def on_response(self) -> None:
        raise AssertionError("there is none")

    def on_lasting(self) -> None:
        self.connection.leave_callbacks()
        self.after.set_result(self.connection.loop.time() - self._began)
        if self._raises:
            raise ValueError("as asked")


def begun(lasting: LastingExchanges, connection: UpstreamConnection, *, raises: bool = False) -> Noticed:
    noticed = Noticed(connection, raises=raises)
    lasting.watch(connection, connection.loop.time())
    return noticed


async def test_an_exchange_that_lasts_is_noticed_once_and_one_that_is_over_is_not() -> None:
    connections = Connections(UpstreamConnection("upstream") for _ in range(3))
    lasting = LastingExchanges(asyncio.get_running_loop(), AFTER, connections)
    over, fails, lasts = (begun(lasting, each, raises=each is connections[1]) for each in connections)
    connections[0].leave_callbacks()
    for noticed in (fails, lasts):
        assert await asyncio.wait_for(noticed.after, PATIENCE) >= AFTER
    assert not over.after.done()
    again = begun(lasting, connections[0])
    assert await asyncio.wait_for(again.after, PATIENCE) >= AFTER
    assert not over.after.done()


async def test_the_next_exchange_of_a_connection_has_its_own_time() -> None:
    connection = UpstreamConnection("upstream")
    lasting = LastingExchanges(asyncio.get_running_loop(), AFTER, [connection])
    first = begun(lasting, connection)
    await asyncio.sleep(AFTER / 2)
    connection.leave_callbacks()
    second = begun(lasting, connection)
    assert await asyncio.wait_for(second.after, PATIENCE) >= AFTER
    assert not first.after.done()


async def test_however_many_last_the_connections_are_looked_at_now_and_then() -> None:
    loop = asyncio.get_running_loop()
    connections = Connections(UpstreamConnection("upstream") for _ in range(100))
    lasting = LastingExchanges(loop, AFTER, connections)
    connections.looks = 0
    noticed = [Noticed(each) for each in connections]
    start = loop.time()
    for number, each in enumerate(noticed):  # one after the other, a millisecond apart
        lasting.watch(each.connection, start + number / 1000)
    looks = connections.looks
    for each in noticed:
        await asyncio.wait_for(each.after, PATIENCE)
    assert connections.looks - looks <= (loop.time() - start - AFTER) / PAUSE + 2


async def test_exchanges_that_are_over_cost_no_looks() -> None:
    loop = asyncio.get_running_loop()
    connections = Connections(UpstreamConnection("upstream") for _ in range(10))
    lasting = LastingExchanges(loop, AFTER, connections)
    connections.looks = 0
    start = loop.time()
    for number, connection in enumerate(list.__iter__(connections)):
        Noticed(connection)
        lasting.watch(connection, start + number * PAUSE)
        connection.leave_callbacks()
    last = begun(lasting, UpstreamConnection("upstream"))
    connections.append(last.connection)
    last.connection.lasts_at = start + AFTER + 9 * PAUSE
    await asyncio.wait_for(last.after, PATIENCE)
    assert connections.looks <= 2, "when the first and when the last would have lasted"
