"""A gateway is replaced in place, under load: no connection is refused, no request is lost, each attempt ends where it began.

Rules of docs/contract.md: R10.20.
"""

import asyncio
import signal
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx
import pytest

from testing.caller import Caller, RawClient, fresh_key, is_replay, raw_post, slug, until_answer
from testing.gateway import DEADLINE, Gateway
from testing.ledger import Ledger, Reply
from testing.servers import RedisServer, free_port
from testing.waiting import until
from tests.system.conftest import Start


@dataclass
class Load:
    """Clients of one port, until the context ends: what they have sent, and what went wrong."""

    port: int
    sent: list[tuple[str, str]] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    ends: bool = False

    async def client(self, path: str, *, requests: int, pause: float) -> None:
        """One that keeps a connection for so many requests, and rests in between."""
        while not self.ends:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError as error:
                self.failures.append(f"refused: {error}")
                continue
            try:
                for _ in range(requests):
                    if not await self._request(reader, writer, path) or self.ends:
                        break
                    await asyncio.sleep(pause)
            except (OSError, EOFError) as error:
                self.failures.append(f"lost: {path} {error!r}")
            finally:
                writer.close()

    async def goes_on(self) -> None:
        """Waits until more is answered."""
        answered = self.answers["201"]
        await until(lambda: self.answers["201"] > answered + 20, "more is answered")

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> bool:
        """Whether the connection is kept."""
        key = fresh_key()
        self.sent.append((key, path))
        writer.write(raw_post(key, path=path))
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        await reader.readexactly(int(head.partition("content-length: ")[2].partition("\r\n")[0]))
        self.answers[head[9:12]] += 1
        if head[9:12] != "201":
            self.failures.append(head)
        return "connection: close" not in head


@asynccontextmanager
async def load(port: int, slow: str = "/slow", many: int = 6) -> AsyncIterator[Load]:
    """Clients that keep connections busy, that keep them idle most of the time, that open one for each request, that wait."""
    running = Load(port)
    clients = [running.client("/payments", requests=1, pause=0) for _ in range(3)]
    clients += [running.client("/payments", requests=1000, pause=0) for _ in range(3)]
    clients += [running.client("/payments", requests=1000, pause=0.05 * each) for each in range(1, 25)]
    clients += [running.client(slow, requests=3, pause=0) for _ in range(many)]
    tasks = [asyncio.create_task(each) for each in clients]
    try:
        yield running
    finally:
        running.ends = True
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            assert not isinstance(ended, BaseException), ended


async def serves(gateway: Gateway) -> None:
    """Waits until ``gateway`` serves its port."""
    await asyncio.to_thread(gateway.ready)


async def logs(gateway: Gateway, line: str) -> None:
    """Waits until it has logged that."""
    await until(lambda: line in gateway.text(), line)


async def begun(running: Gateway, successor: Gateway) -> None:
    """Waits until the running one hands its sockets over to the other one."""
    await logs(running, f"process {successor.pid} is being started")


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("times", [4, pytest.param(20, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
async def test_under_load_nothing_is_refused_or_lost_and_no_attempt_is_unknown(
    start: Start, ledger: Ledger, redis_server: RedisServer, caller: Caller, workers: int, times: int
) -> None:
    port, namespace, slow = free_port(), f"replacement-{uuid4().hex}", f"/slow-{uuid4().hex}"
    ledger.answer(slow, Reply(delay=10 if times > 10 else 1.5))
    settings: dict[str, Any] = {"namespace": namespace, "workers": workers, "port": port, "cache_timeout": 10}
    gateways = [start(ledger.url, redis_server.url, **settings).ready()]
    async with load(port, slow, 6 if times < 10 else 40) as running:
        for _ in range(times):
            gateways.append(start(ledger.url, redis_server.url, replace=True, **settings))
            await serves(gateways[-1])
    assert running.failures == []
    assert running.answers["201"] == len(running.sent)
    for replaced in gateways[:-1]:
        assert await asyncio.to_thread(replaced.exit_code) == 0
    for key, path in running.sent:
        answer = await caller.post(gateways[-1], key, path)
        assert is_replay(answer), answer.text
        assert answer.status_code == 201
        assert path == slow or ledger.attempts(key) == ["1"]
    assert len(ledger.arrivals(slow)) == sum(path == slow for _, path in running.sent)


async def test_an_idle_connection_is_closed_by_none_but_its_last_answer(
    start: Start, ledger: Ledger, redis_server: RedisServer
) -> None:
    """A request that crosses the replacement on an idle connection would be lost with it."""
    port, gate_path = free_port(), f"/held-{uuid4().hex}"
    settings: dict[str, Any] = {"port": port, "cache_timeout": 10}
    replaced = start(ledger.url, redis_server.url, **settings).ready()
    with (
        ledger.gate() as gate,
        RawClient(replaced) as idle,
        RawClient(replaced) as streaming,
        RawClient(replaced) as new,
    ):
        ledger.answer(gate_path, Reply(200, pieces=[b"begun", gate, b"ended"]))
        idle.send(raw_post(fresh_key()))
        assert idle.answer().values("connection") == []
        streaming.send(raw_post(fresh_key(), path=gate_path))
        assert b"connection: close" not in streaming.receive_until(b"begun")
        successor = start(ledger.url, redis_server.url, replace=True, **settings)
        await serves(successor)
        await logs(replaced, "replaced: connections")
        gate.open()
        streaming.receive_until(b"0\r\n\r\n")
        for client in (idle, streaming, new):
            client.send(raw_post(fresh_key()) + raw_post(fresh_key()))  # the second one is in the socket when it closes
            first, second = client.answer(), client.answer()
            assert (first.status, second.status) == (201, 201)
            assert first.values("connection") == []
            assert second.values("connection") == ["close"]
            assert client.receive_all() == b""
    assert await asyncio.to_thread(replaced.exit_code) == 0
    successor.terminate()
    assert await asyncio.to_thread(successor.exit_code) == 0


@pytest.mark.parametrize("workers", [1, 2])
async def test_one_that_dies_in_the_midst_of_starting_replaces_nobody(
    start: Start, ledger: Ledger, redis_server: RedisServer, workers: int
) -> None:
    port = free_port()
    settings: dict[str, Any] = {"port": port, "workers": workers, "cache_timeout": 10}
    with RedisServer() as stuck:
        running = start(ledger.url, redis_server.url, **settings).ready()
        async with load(port) as requests:
            for _ in range(3):
                stuck.pause()
                dying = start(ledger.url, stuck.url, replace=True, **settings)
                await begun(running, dying)
                dying.end()
                stuck.resume()
                await logs(running, f"process {dying.pid} has ended before it could serve")
                await requests.goes_on()
            await serves(start(ledger.url, redis_server.url, replace=True, **settings))
        assert requests.failures == []
    assert await asyncio.to_thread(running.exit_code) == 0


@pytest.mark.parametrize("workers", [1, 2])
async def test_one_that_could_not_serve_replaces_nobody_and_says_why(
    start: Start, ledger: Ledger, redis_server: RedisServer, workers: int
) -> None:
    port = free_port()
    settings: dict[str, Any] = {"port": port, "workers": workers, "cache_timeout": 0.5, "log_level": "error"}
    running = start(ledger.url, redis_server.url, **settings | {"log_level": "info"}).ready()
    async with load(port) as requests:
        for upstream, cache, why in (
            ("http://127.0.0.1:1", redis_server.url, "the upstream is unreachable from here"),
            (ledger.url, "redis://127.0.0.1:1", "the cache is unavailable from here"),
        ):
            refused = start(upstream, cache, replace=True, **settings)
            assert await asyncio.to_thread(refused.exit_code) == 1
            assert refused.log.read_text() == f"oncegate: {why}, and the running gateway goes on\n"
            refused.log.write_text("")
    assert requests.failures == []
    assert requests.answers["201"] == len(requests.sent)
    assert not running.has_ended


async def test_of_two_at_once_one_replaces_and_the_other_one_says_so(
    start: Start, ledger: Ledger, redis_server: RedisServer
) -> None:
    port = free_port()
    settings: dict[str, Any] = {"port": port, "cache_timeout": 30, "idempotency": {"lease": 90}}
    with RedisServer() as stuck:
        running = start(ledger.url, redis_server.url, **settings).ready()
        stuck.pause()
        first = start(ledger.url, stuck.url, replace=True, **settings)
        await begun(running, first)
        second = start(ledger.url, redis_server.url, replace=True, log_level="error", **settings)
        assert await asyncio.to_thread(second.exit_code) == 1
        line = f"oncegate: another one, process {first.pid}, is being started in its place\n"
        assert second.log.read_text() == line
        second.log.write_text("")
        stuck.resume()
        await serves(first)
        assert await asyncio.to_thread(running.exit_code) == 0


async def test_with_none_that_runs_it_starts_as_the_first_one_and_leaves_no_file(
    start: Start, ledger: Ledger, redis_server: RedisServer, caller: Caller
) -> None:
    port = free_port()
    first = start(ledger.url, redis_server.url, port=port, replace=True).ready()
    control = first.log.parent / f"127.0.0.1-{port}.sock"
    assert "starting as the first one" in first.text()
    assert control.stat().st_mode & 0o777 == 0o600
    assert (await caller.post(first, fresh_key())).status_code == 201
    first.kill()
    assert control.exists()
    second = start(ledger.url, redis_server.url, port=port, replace=True).ready()
    second.terminate()
    assert await asyncio.to_thread(second.exit_code) == 0
    assert not control.exists()


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_running_one_that_ends_meanwhile_leaves_its_place_to_the_new_one(
    start: Start, ledger: Ledger, redis_server: RedisServer, caller: Caller, workers: int
) -> None:
    for end in (Gateway.terminate, Gateway.end):
        port = free_port()
        settings: dict[str, Any] = {"port": port, "workers": workers, "cache_timeout": 30, "idempotency": {"lease": 90}}
        with RedisServer() as stuck:
            running = start(ledger.url, redis_server.url, **settings).ready()
            stuck.pause()
            successor = start(ledger.url, stuck.url, replace=True, **settings)
            await begun(running, successor)
            end(running)
            assert await asyncio.to_thread(running.exit_code) in (0, -signal.SIGKILL)
            socket.create_connection(("127.0.0.1", port), 5).close()  # it waits, and is not refused
            stuck.resume()
            await serves(successor)
            assert (await caller.post(successor, fresh_key())).status_code == 201


async def test_workers_of_the_new_one_are_replaced_as_ever_also_without_an_upstream(
    start: Start, ledger: Ledger, redis_server: RedisServer, caller: Caller
) -> None:
    """Such a worker replaces nobody, and needs neither cache nor upstream to start."""
    settings: dict[str, Any] = {"port": free_port(), "workers": 2, "cache_timeout": 10}
    with Ledger() as upstream:
        start(upstream.url, redis_server.url, **settings).ready()
        gateway = start(upstream.url, redis_server.url, replace=True, **settings).ready()
    gateway.kill_workers()
    await until_answer(lambda: caller.post(gateway, fresh_key()), "upstream-unreachable")
    again = start(ledger.url, redis_server.url, replace=True, **settings)
    await serves(again)
    assert (await caller.post(again, fresh_key())).status_code == 201


async def test_a_worker_of_the_running_one_that_dies_meanwhile_is_replaced_and_the_gateway_is_not(
    start: Start, ledger: Ledger, redis_server: RedisServer, caller: Caller
) -> None:
    """Both would serve for good else, since it is that worker which hands the sockets over."""
    settings: dict[str, Any] = {"port": free_port(), "workers": 2, "cache_timeout": 30, "idempotency": {"lease": 90}}
    with RedisServer() as stuck:
        running = start(ledger.url, redis_server.url, **settings).ready()
        stuck.pause()
        refused = start(ledger.url, stuck.url, replace=True, log_level="error", **settings)
        await begun(running, refused)
        running.kill_workers()
        stuck.resume()
        assert await asyncio.to_thread(refused.exit_code) == 1
    assert refused.log.read_text() == "oncegate: the running gateway broke off, and goes on\n"
    refused.log.write_text("")
    await serves(start(ledger.url, redis_server.url, replace=True, **settings))
    assert await asyncio.to_thread(running.exit_code) == 0


async def test_memory_is_not_replaced(start: Start, ledger: Ledger) -> None:
    refused = start(ledger.url, "memory://", replace=True, port=free_port())
    assert await asyncio.to_thread(refused.exit_code) == 1
    line = refused.log.read_text()
    assert line.startswith("oncegate: --replace: needs")
    assert line.count("\n") == 1
    refused.log.write_text("")


@pytest.mark.parametrize("workers", [1, 2])
async def test_an_attempt_whose_client_has_left_ends_in_the_old_one(
    start: Start, ledger: Ledger, redis_server: RedisServer, caller: Caller, workers: int
) -> None:
    key, settings = fresh_key(), {"port": free_port(), "workers": workers, "cache_timeout": 10}
    replaced = start(ledger.url, redis_server.url, **settings).ready()
    with ledger.gate() as gate, RawClient(replaced) as client:
        ledger.answer(key, Reply(gate=gate), Reply(500))
        client.send(raw_post(key))
        await until(lambda: ledger.arrivals(key), "the request arrives")
        client.leave()
        successor = start(ledger.url, redis_server.url, replace=True, **settings)
        await serves(successor)
        assert slug(await caller.post(successor, key)) == "in-flight"
        await logs(replaced, "stopping: attempts in flight")
        assert not replaced.has_ended
        gate.open()
        assert is_replay(await caller.settled(successor, key))
    assert await asyncio.to_thread(replaced.exit_code) == 0
    assert ledger.attempts(key) == ["1"]


@pytest.mark.parametrize("workers", [1, 2])
async def test_sigterm_ends_one_that_was_replaced_and_waits_for_idle_connections(
    start: Start, ledger: Ledger, redis_server: RedisServer, workers: int
) -> None:
    settings: dict[str, Any] = {"port": free_port(), "workers": workers, "cache_timeout": 10}
    replaced = start(ledger.url, redis_server.url, **settings).ready()
    with RawClient(replaced) as idle:
        idle.send(raw_post(fresh_key()))
        assert idle.answer().status == 201
        await serves(start(ledger.url, redis_server.url, replace=True, **settings))
        await logs(replaced, "replaced: connections")
        replaced.terminate()
        assert await asyncio.to_thread(replaced.exit_code) == 0
        assert idle.receive_all() == b""


async def test_ops_port_is_handed_over_too_and_a_new_one_is_opened(
    start: Start, ledger: Ledger, redis_server: RedisServer, caller: Caller
) -> None:
    port, first, other = free_port(), free_port(), free_port()
    old = start(ledger.url, redis_server.url, port=port, ops_port=first).ready()
    same = start(ledger.url, redis_server.url, port=port, ops_port=first, replace=True)
    await logs(same, "listening on")
    assert await asyncio.to_thread(old.exit_code) == 0
    assert await metrics(first) == 200
    moved = start(ledger.url, redis_server.url, port=port, ops_port=other, replace=True)
    await logs(moved, "listening on")
    assert await asyncio.to_thread(same.exit_code) == 0
    assert await metrics(other) == 200
    with pytest.raises(httpx.ConnectError):
        await metrics(first)


async def metrics(port: int) -> int:
    async with httpx.AsyncClient(timeout=DEADLINE, trust_env=False) as client:
        return (await client.get(f"http://127.0.0.1:{port}/_oncegate/metrics")).status_code
