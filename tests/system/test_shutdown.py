"""SIGTERM: no new requests, every attempt in flight is finished and recorded, exit code 0; but not for ever.

Rules of docs/contract.md: R10.8, R11.15.
"""

import asyncio
import socket
import time
from contextlib import ExitStack, suppress
from uuid import uuid4

import httpx
import pytest

from testing.caller import Caller, RawClient, fresh_key, is_replay, raw_post, slug, until_answer
from testing.gateway import Gateway
from testing.ledger import Ledger, Reply
from testing.servers import RedisServer
from testing.waiting import until
from tests.system.conftest import Start


def refuses(gateway: Gateway) -> bool:
    try:
        socket.create_connection(gateway.address, 5).close()
    except OSError:
        return True
    return False


@pytest.mark.parametrize("workers", [1, 2])
async def test_sigterm_lets_attempts_finish_and_records_them_whether_or_not_their_clients_stay(
    trio: list[Gateway], start: Start, ledger: Ledger, redis_server: RedisServer, caller: Caller, workers: int
) -> None:
    stopping = start(ledger.url, redis_server.url, workers=workers, cache_timeout=10).ready()
    attached, detached, too_late = [fresh_key() for _ in range(6)], [fresh_key() for _ in range(6)], fresh_key()
    with ExitStack() as stack, ledger.gate() as gate:
        for key in attached + detached:
            ledger.answer(key, Reply(gate=gate), Reply(500))
        staying = [caller.send(stopping, key) for key in attached]
        leaving = [stack.enter_context(RawClient(stopping)) for _ in detached]
        for client, key in zip(leaving, detached, strict=True):
            client.send(raw_post(key))
        await until(lambda: all(map(ledger.arrivals, attached + detached)), "all requests arrive")
        for client in leaving:
            client.leave()
        idle = stack.enter_context(RawClient(stopping))
        idle.send(b"GET /_oncegate/healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert idle.answer().status == 200
        stopping.terminate()
        await until(lambda: refuses(stopping), "the port closes")
        with suppress(ConnectionError):
            idle.send(raw_post(too_late))
        received = idle.receive_all()
        assert received == b"" or received.startswith(b"HTTP/1.1 503")
        assert not stopping.has_ended
        assert not any(task.done() for task in staying)
        gate.open()
        answers = dict(zip(attached, await asyncio.gather(*staying), strict=True))
    assert {answer.status_code for answer in answers.values()} == {201}
    assert await asyncio.to_thread(stopping.exit_code) == 0
    for key in attached + detached:
        again = await caller.post(trio[0], key)
        assert is_replay(again)
        assert key in detached or again.content == answers[key].content
        assert ledger.attempts(key) == ["1"]
    assert ledger.arrivals(too_late) == []


async def test_sigterm_on_the_embedded_cache_lets_attempts_and_streams_finish(
    start: Start, ledger: Ledger, caller: Caller
) -> None:
    stopping = start(ledger.url).ready()
    keyed, streamed = fresh_key(), fresh_key()
    with ledger.gate() as gate, RawClient(stopping) as client:
        ledger.answer(keyed, Reply(gate=gate))
        ledger.answer(streamed, Reply(200, pieces=[b"begun", gate, b"ended"]))
        task = caller.send(stopping, keyed)
        client.send(raw_post(streamed))
        client.receive_until(b"begun")
        await until(lambda: ledger.arrivals(keyed), "the request arrives")
        stopping.terminate()
        await until(lambda: refuses(stopping), "the port closes")
        gate.open()
        assert (await task).status_code == 201
        client.receive_until(b"ended\r\n0\r\n\r\n")
    assert await asyncio.to_thread(stopping.exit_code) == 0


@pytest.mark.parametrize("workers", [1, 2])
async def test_after_shutdown_timeout_it_exits_and_what_was_left_becomes_unknown(
    start: Start, ledger: Ledger, redis_server: RedisServer, caller: Caller, workers: int
) -> None:
    namespace = f"shutdown-{uuid4().hex}"
    rules = {"cache_timeout": 0.5, "idempotency": {"lease": 3}, "namespace": namespace}
    stopping = start(ledger.url, redis_server.url, workers=workers, shutdown_timeout=1, **rules).ready()
    successor = start(ledger.url, redis_server.url, **rules).ready()
    keys = [fresh_key() for _ in range(4)]
    with ledger.gate() as gate:
        for key in keys:
            ledger.answer(key, Reply(gate=gate), Reply(500))
        tasks = [caller.send(stopping, key) for key in keys]
        await until(lambda: all(map(ledger.arrivals, keys)), "all requests arrive")
        began = time.monotonic()
        stopping.terminate()
        assert await asyncio.to_thread(stopping.exit_code) == 0
        assert time.monotonic() - began >= 1
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            # Its outcome isn't known: no answer at all, or one that says so, but none that sounds like an end.
            if isinstance(ended, httpx.Response):
                assert slug(ended) in ("upstream-failed", "upstream-timeout")
            else:
                assert isinstance(ended, httpx.TransportError)
        for key in keys:
            answer = await until_answer(lambda key=key: caller.post(successor, key), "outcome-unknown")  # type: ignore[misc]  # the loop's value is bound on purpose
            assert answer.status_code == 409
            assert ledger.attempts(key) == ["1"]


async def test_neither_a_stalled_upload_nor_an_endless_stream_nor_a_waiter_holds_up_the_end_for_ever(
    trio: list[Gateway], start: Start, ledger: Ledger, redis_server: RedisServer, caller: Caller
) -> None:
    stopping = start(ledger.url, redis_server.url, shutdown_timeout=1, cache_timeout=10).ready()
    half, streamed, awaited = fresh_key(), fresh_key(), fresh_key()
    with ledger.gate() as gate, RawClient(stopping) as upload, RawClient(stopping) as stream:
        ledger.answer(streamed, Reply(200, pieces=[b"data: begun", gate]))
        ledger.answer(awaited, Reply(gate=gate))
        upload.send(raw_post(half)[:-1])
        stream.send(raw_post(streamed, b"").replace(b"POST", b"GET", 1))
        stream.receive_until(b"data: begun")
        elsewhere = caller.send(trio[0], awaited)
        await until(lambda: ledger.arrivals(awaited), "the request arrives")
        waiter = caller.send(stopping, awaited, wait=30)
        await asyncio.sleep(0)
        stopping.terminate()
        assert await asyncio.to_thread(stopping.exit_code) == 0
        assert b"0\r\n\r\n" not in stream.receive_all()  # cut off, which is not an end
        with suppress(httpx.TransportError):
            assert slug(await waiter) in ("in-flight", "cache-unavailable", "overloaded")
        gate.open()
        assert (await elsewhere).status_code == 201
    assert ledger.arrivals(half) == []
    assert ledger.attempts(awaited) == ["1"]
    assert (await caller.post(trio[0], half)).status_code == 201


async def test_an_outcome_that_waits_for_redis_is_recorded_before_the_process_ends(
    start: Start, ledger: Ledger, caller: Caller
) -> None:
    key = fresh_key()
    with RedisServer(persist=True) as server, ledger.gate() as gate:
        stopping = start(ledger.url, server.url, cache_timeout=1).ready()
        ledger.answer(key, Reply(gate=gate), Reply(500))
        task = caller.send(stopping, key)
        await until(lambda: ledger.arrivals(key), "the request arrives")
        server.stop()
        gate.open()
        answer = await task
        assert answer.status_code == 201
        stopping.terminate()
        await until(lambda: refuses(stopping), "the port closes")
        server.start()
        assert await asyncio.to_thread(stopping.exit_code) == 0
        successor = start(ledger.url, server.url, cache_timeout=1).ready()
        await caller.meets_replay(successor, key, of=answer)


async def test_workers_whose_parent_is_killed_finish_what_they_began_and_end(
    trio: list[Gateway], start: Start, ledger: Ledger, redis_server: RedisServer, caller: Caller
) -> None:
    orphaned = start(ledger.url, redis_server.url, workers=2, cache_timeout=10).ready()
    key = fresh_key()
    async with caller.held(ledger, orphaned, key, then=Reply(500)) as (task, gate):
        orphaned.kill()
        await until(lambda: refuses(orphaned), "the port closes")
        assert not task.done()
        gate.open()
        assert (await task).status_code == 201
    assert is_replay(await caller.post(trio[0], key))
    assert ledger.attempts(key) == ["1"]


async def test_a_worker_that_is_killed_is_replaced_and_its_attempts_become_unknown(
    start: Start, ledger: Ledger, redis_server: RedisServer, caller: Caller
) -> None:
    namespace = f"workers-{uuid4().hex}"
    gateway = start(
        ledger.url,
        redis_server.url,
        workers=2,
        cache_timeout=0.5,
        idempotency={"lease": 3},
        namespace=namespace,
        routes=[{"path": "/retry-unknown/*", "on_unknown": "retry"}],
    ).ready()
    key, path = fresh_key(), "/retry-unknown/payments"
    async with caller.held(ledger, gateway, key, path, then=Reply(201)) as (task, _):
        gateway.kill_workers()
        with pytest.raises(httpx.TransportError):
            await task
        await until(lambda: not refuses(gateway), "a worker serves again")
        answer = await caller.settled(gateway, key, path)
    assert answer.status_code == 201
    assert ledger.attempts(key) == ["1", "2"]
    gateway.terminate()
    assert await asyncio.to_thread(gateway.exit_code) == 0
