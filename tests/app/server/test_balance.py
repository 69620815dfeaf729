"""Connections are spread over the workers: real processes, and what the kernel says of who holds what."""

import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import pytest

from oncegate.app.server.accept import STALE_SECONDS, Balance
from testing.command_line import PATIENCE, Running, forked
from testing.servers import free_port
from testing.waiting import wait_until

PATIENT = """
from oncegate.app.server import accept
accept.STALE_SECONDS, accept.PATIENCE = 60.0, 12_000
"""
"""Has workers wait for one that gets no processor for seconds: on a slow machine the others would get its part."""
Connect = Callable[[ExitStack, int, int], list[socket.socket]]


def held(workers: list[int], port: int) -> list[int]:
    """How many connections to ``port`` each of these processes has accepted."""
    ours = {
        fields[9]
        for fields in map(str.split, Path("/proc/net/tcp").read_text().splitlines()[1:])
        if int(fields[1].partition(":")[2], 16) == port and fields[3] == "01"
    }
    return [len(ours & set(sockets_of(worker))) for worker in workers]


def sockets_of(process: int) -> Iterator[str]:
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):
            if found := re.fullmatch(r"socket:\[(\d+)\]", str(descriptor.readlink())):
                yield found[1]


def until_held(workers: list[int], port: int, count: int) -> list[int]:
    found: list[int] = []

    def all_held() -> bool:
        found[:] = held(workers, port)
        return sum(found) == count

    wait_until(all_held, f"{count} connections")
    return found


def connect_at_once(stack: ExitStack, port: int, count: int) -> list[socket.socket]:
    clients = [stack.enter_context(socket.socket()) for _ in range(count)]
    for client in clients:
        client.setblocking(False)
        client.connect_ex(("127.0.0.1", port))
    for client in clients:
        client.settimeout(PATIENCE)
    return clients


def connect_one_by_one(stack: ExitStack, port: int, count: int) -> list[socket.socket]:
    clients = []
    for _ in range(count):
        clients.append(stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)))
        answer(clients[-1])
    return clients


def answer(client: socket.socket) -> None:
    client.sendall(b"GET /_oncegate/healthz HTTP/1.1\r\nhost: x\r\n\r\n")
    assert client.recv(12) == b"HTTP/1.1 200"


@contextmanager
def gateway(workers: int, redis_url: str, before: str = "") -> Iterator[tuple[list[int], int, Running]]:
    """The process ids of its workers, and its port. ``before`` is Python that it runs first."""
    upstream = f"http://127.0.0.1:{free_port()}"
    serve = ["serve", "--upstream", upstream, "--cache", redis_url, "--port", "0", "--workers", str(workers)]
    with forked(*serve, before=before, ONCEGATE_CACHE_TIMEOUT="10", ONCEGATE_NAMESPACE=uuid4().hex) as process:
        port = int(process.url(workers).rpartition(":")[2])
        parent = process.process.pid
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        yield [int(child) for child in children], port, process


@pytest.mark.parametrize("connect", [connect_at_once, connect_one_by_one])
@pytest.mark.parametrize(("count", "workers"), [(32, 2), (32, 4), (256, 4)])
def test_the_shares_of_workers_are_within_a_fifth_of_each_other(
    count: int, workers: int, connect: Connect, redis_url: str
) -> None:
    with gateway(workers, redis_url, PATIENT) as (processes, port, _), ExitStack() as stack:
        connect(stack, port, count)
        found = until_held(processes, port, count)
        assert max(found) <= 1.2 * min(found), found


def test_connections_that_end_make_room_for_others(redis_url: str) -> None:
    """All of one worker's clients leave, and as many others come."""
    with gateway(2, redis_url, PATIENT) as (processes, port, _), ExitStack() as stack:
        clients = connect_at_once(stack, port, 64)
        before = until_held(processes, port, 64)
        theirs = set(sockets_of(processes[0]))
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        peers = {int(fields[2].partition(":")[2], 16) for fields in lines if fields[9] in theirs}
        for client in clients:
            if client.getsockname()[1] in peers:
                client.close()
        until_held(processes, port, 64 - before[0])
        connect_one_by_one(stack, port, before[0])
        found = until_held(processes, port, 64)
        assert max(found) <= 1.2 * min(found), found


def test_what_a_stopped_worker_leaves_is_accepted_by_the_others(redis_url: str) -> None:
    with gateway(2, redis_url) as (processes, port, _), ExitStack() as stack:
        os.kill(processes[0], signal.SIGSTOP)
        for client in connect_at_once(stack, port, 40):
            answer(client)
        connect_one_by_one(stack, port, 10)
        assert held(processes, port) == [0, 50]
        os.kill(processes[0], signal.SIGCONT)
        for _ in range(400):  # how soon it gets a processor, and so its part, is the machine's affair
            connect_one_by_one(stack, port, 1)
            if held(processes, port)[0] >= 25:
                return
        raise AssertionError("it gets no part any more")


def test_a_worker_that_dies_takes_no_waiting_connection_with_it(redis_url: str) -> None:
    with gateway(2, redis_url) as (processes, port, process), ExitStack() as stack:
        os.kill(processes[0], signal.SIGSTOP)
        clients = connect_at_once(stack, port, 40)
        os.kill(processes[0], signal.SIGKILL)
        for client in clients:
            answer(client)
        process.wait_for("starting another")


def test_a_worker_takes_its_part_of_all_there_are() -> None:
    balance = Balance(3)
    for index in (0, 1):
        balance.enter(index)
    assert balance.room(0, 64) == 32, "the third is not there yet"
    balance.enter(2)
    assert balance.room(20, 70) == 10
    assert balance.room(38, 52) == 0
    assert balance.part(52) == 18, "the others did not come"


def test_who_has_left_or_is_silent_gets_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    balance = Balance(2)
    balance.enter(0)
    for leave in (balance.leave, lambda: balance.died(1)):
        balance.enter(1)
        leave()
        balance.enter(0)
        assert balance.room(10, 10) == 10
    balance.enter(1)
    assert balance.room(10, 10) < 10
    later = time.monotonic() + STALE_SECONDS
    monkeypatch.setattr("oncegate.app.server.accept.monotonic", lambda: later)
    balance.enter(0)
    assert balance.room(10, 10) == 10
