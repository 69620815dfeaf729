"""Connections that come all at once are all accepted at once."""

import asyncio
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import uvloop

from oncegate.app.gateway_server import GatewayServer, server_config
from oncegate.app.reload.running import Running
from oncegate.app.server.accept import MOST, Acceptor, bind
from oncegate.app.settings.gateway import GatewaySettings
from testing.waiting import until


class Connection(asyncio.Protocol):
    made = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        Connection.made += 1


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> Iterator[asyncio.AbstractEventLoop]:
    Connection.made = 0
    loop = request.param()
    yield loop
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


def run(loop: asyncio.AbstractEventLoop, clients: int, turns: int) -> int:
    """How many of so many waiting clients are connected after so many turns of the loop."""

    async def accept() -> int:
        with ExitStack() as stack:
            (listening,) = (stack.enter_context(each) for each in bind("127.0.0.1", 0))
            listening.listen(clients)
            address = listening.getsockname()
            for _ in range(clients):
                stack.enter_context(socket.create_connection(address, timeout=10))
            acceptor = Acceptor([listening], Connection)
            acceptor.start()
            for _ in range(turns):
                await asyncio.sleep(0)
            accepted = Connection.made
            acceptor.stop()
            return accepted

    return loop.run_until_complete(accept())


def test_all_that_wait_are_accepted_within_a_few_turns(loop: asyncio.AbstractEventLoop) -> None:
    assert run(loop, clients=50, turns=8) == 50


def test_one_turn_leaves_some_to_other_workers(loop: asyncio.AbstractEventLoop) -> None:
    assert run(loop, clients=MOST + 20, turns=1) <= MOST


async def test_nothing_is_accepted_after_the_stop() -> None:
    Connection.made = 0
    (listening,) = bind("127.0.0.1", 0)
    listening.listen(1)
    acceptor = Acceptor([listening], Connection)
    acceptor.start()
    acceptor.stop()
    with socket.create_connection(listening.getsockname(), timeout=10):
        for _ in range(8):
            await asyncio.sleep(0)
        assert Connection.made == 0
        address = listening.getsockname()
        listening.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=10)


def test_without_a_free_descriptor_it_waits_until_there_is_one(
    loop: asyncio.AbstractEventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    async def accept() -> None:
        with ExitStack() as stack:
            (listening,) = (stack.enter_context(each) for each in bind("127.0.0.1", 0))
            listening.listen(5)
            acceptor = Acceptor([listening], Connection)
            acceptor.start()
            clients = [stack.enter_context(socket.socket()) for _ in range(5)]
            spare = os.dup(listening.fileno())
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (spare, hard))
            try:
                for client in clients:
                    client.connect(listening.getsockname())
                for _ in range(20):
                    await asyncio.sleep(0)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                os.close(spare)
            assert Connection.made == 0
            await until(lambda: Connection.made >= 5)
            acceptor.stop()

    loop.run_until_complete(accept())
    assert caplog.text.count("no more connections can be accepted for now") == 1


def test_the_gateway_accepts_so() -> None:
    """On uvloop, as it runs: by itself that would accept one connection a turn."""

    async def serve() -> int:
        settings = GatewaySettings(upstream="http://127.0.0.1:9")
        gateway = Running(settings)
        sockets = bind("127.0.0.1", 0)
        server = GatewayServer(server_config(gateway), gateway, announce=None)
        running = asyncio.create_task(server._serve(sockets))
        while not server.started:
            assert not running.done(), running.exception()
            await asyncio.sleep(0)
        with ExitStack() as clients:
            for _ in range(50):
                clients.enter_context(socket.create_connection(sockets[0].getsockname(), timeout=10))
            for _ in range(8):
                await asyncio.sleep(0)
            accepted = len(server.server_state.connections)
        server.should_exit = True
        await running
        return accepted

    loop = uvloop.new_event_loop()
    try:
        assert loop.run_until_complete(serve()) == 50
    finally:
        loop.close()
