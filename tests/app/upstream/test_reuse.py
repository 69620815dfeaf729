"""Which connections are used again, and for how long they are kept: one that has died in silence would cost a command its key.

Rules of docs/contract.md: R9.18.
"""

import asyncio

import pytest

from testing.asgi_client import Client
from testing.upstreams import OK, Peer, answering
from testing.waiting import until
from tests.app.forwarding import forwarding

pytestmark = pytest.mark.both_loops


async def test_connections_are_used_again_the_last_one_first() -> None:
    async def in_turn(peer: Peer) -> None:
        await peer.request()
        await turns[peer.number].wait()
        await peer.send(OK)
        await answering(OK)(peer)

    turns = [asyncio.Event() for _ in range(4)]
    async with forwarding(in_turn, keepalive=600) as (upstream, forwarder):
        calls = [asyncio.create_task(Client().call(forwarder)) for _ in turns]
        await upstream.received(4)
        for number, turn in enumerate(turns):
            turn.set()
            await until(lambda answered=number + 1: forwarder.upstream.idle == answered)  # type: ignore[misc]  # the loop's value is bound on purpose
        await asyncio.gather(*calls)
        assert (upstream.connections, forwarder.upstream.idle) == (4, 4)
        for _ in range(5):
            await Client().call(forwarder)
        assert upstream.connections == 4
        assert [upstream.served[number] for number in range(4)] == [1, 1, 1, 6]


async def test_an_idle_connection_that_the_upstream_closed_in_silence_is_not_used() -> None:
    """The close is in the socket, but the loop has not looked yet: only asking the socket finds out."""

    async def once(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.hang()

    async with forwarding([once, answering(OK)]) as (upstream, forwarder):
        await Client().call(forwarder)
        upstream.peers[0].end_silently()
        assert (await Client().call(forwarder)).body == b"ok"
        assert (upstream.arrivals, upstream.connections) == (2, 2)


async def test_an_idle_connection_that_speaks_is_not_used() -> None:
    async def chatty(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await may_speak.wait()
        await peer.send(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n")
        await peer.hang()

    may_speak = asyncio.Event()
    async with forwarding([chatty, answering(OK)], keepalive=600) as (upstream, forwarder):
        await Client().call(forwarder)
        may_speak.set()
        await upstream.gone()
        assert (await Client().call(forwarder)).body == b"ok"


@pytest.mark.parametrize(
    ("fields", "keepalive", "kept"),
    [
        (b"", 1.5, 1),
        (b"", 0, 0),
        (b"connection: close\r\n", 1.5, 0),
        (b"connection: x-a, Close\r\n", 1.5, 0),
        (b"keep-alive: timeout=5, max=10\r\n", 1.5, 1),
        (b"keep-alive: timeout=0\r\n", 1.5, 0),
        (b"keep-alive: max=1\r\n", 1.5, 1),
    ],
)
async def test_which_connections_are_kept(fields: bytes, keepalive: float, kept: int) -> None:
    behaviour = answering(OK.replace(b"\r\n\r\n", b"\r\n" + fields + b"\r\n"))
    async with forwarding(behaviour, keepalive=keepalive) as (_, forwarder):
        await Client().call(forwarder)
        assert forwarder.upstream.idle == kept


@pytest.mark.parametrize(("fields", "kept"), [(b"", 0), (b"connection: keep-alive\r\n", 1)])
async def test_an_old_upstream_keeps_its_connection_only_if_it_says_so(fields: bytes, kept: int) -> None:
    behaviour = answering(b"HTTP/1.0 200 OK\r\ncontent-length: 0\r\n" + fields + b"\r\n")
    async with forwarding(behaviour) as (_, forwarder):
        await Client().call(forwarder)
        assert forwarder.upstream.idle == kept


async def test_idle_connections_are_closed_when_their_time_is_over() -> None:
    async with forwarding(one_then_hang, keepalive=0.1) as (upstream, forwarder):
        await Client().call(forwarder)
        await upstream.gone()
        assert forwarder.upstream.idle == 0


async def test_the_upstreams_own_keep_alive_is_undercut() -> None:
    behaviour = answering(OK.replace(b"\r\n\r\n", b"\r\nkeep-alive: timeout=1\r\n\r\n"))
    async with forwarding(behaviour, keepalive=600) as (upstream, forwarder):
        await Client().call(forwarder)
        await asyncio.sleep(0.6)  # more than half of what the upstream has announced, and less than all of it
        await Client().call(forwarder)
        assert upstream.connections == 2


async def test_no_more_idle_connections_are_kept_than_allowed() -> None:
    async with forwarding(answering(OK), keepalive=600, max_idle=2) as (_, forwarder):
        await asyncio.gather(*(Client().call(forwarder) for _ in range(5)))
        assert forwarder.upstream.idle == 2


async def test_what_many_requests_at_once_have_opened_serves_the_next_as_many() -> None:
    async with forwarding(answering(OK), keepalive=600, connect_timeout=60) as (upstream, forwarder):
        for _ in range(2):
            await asyncio.gather(*(Client().call(forwarder) for _ in range(300)))
        assert upstream.connections == 300


async def test_closing_ends_idle_connections_at_once_and_the_others_after_their_exchange() -> None:
    async def gated(peer: Peer) -> None:
        await peer.request()
        await gate.wait()
        await peer.send(OK)
        await peer.hang()

    gate = asyncio.Event()
    async with forwarding([gated, gated, one_then_hang]) as (upstream, forwarder):
        busy = [asyncio.create_task(Client().call(forwarder)) for _ in range(2)]
        await upstream.received(2)
        await Client().call(forwarder)
        await upstream.gone(2)
        assert not any(task.done() for task in busy)
        gate.set()
        assert [client.body for client in await asyncio.gather(*busy)] == [b"ok", b"ok"]
        for peer in upstream.peers:
            await upstream.gone(peer.number)


async def one_then_hang(peer: Peer) -> None:
    await peer.request()
    await peer.send(OK)
    await peer.hang()


async def test_the_request_behind_a_response_that_the_parser_takes_for_the_last_is_answered() -> None:
    spoiled = OK.replace(b"\r\n\r\n", b"\r\nproxy-connection: close\r\n\r\n")
    async with forwarding(answering(spoiled), keepalive=600) as (upstream, forwarder):
        for _ in range(3):
            assert (await Client("POST").call(forwarder)).body == b"ok"
        assert upstream.arrivals == 3
