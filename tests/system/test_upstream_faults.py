"""Upstreams that refuse, reset, hang, trickle and close: what was never sent is told apart from what got no answer.

Rules of docs/contract.md: R1.5, R1.6, R3.18, R4.22, R4.23, R5.8, R5.17, R5.18, R9.8, R9.9.
"""

import asyncio
import random
import socket
from collections import Counter
from contextlib import suppress
from threading import Thread

import httpx
import pytest

from testing.caller import BODY_MARK, Caller, RawClient, fresh_key, is_replay, raw_post, slug
from testing.gateway import Gateway
from testing.ledger import Ledger, Reply
from testing.servers import RedisServer, free_port
from testing.upstreams import OK, PATIENCE, Upstream, answering
from testing.waiting import until
from tests.system.conftest import Start


@pytest.mark.parametrize("cache", ["memory", "redis"])
async def test_an_upstream_that_refuses_leaves_the_key_free(
    start: Start, redis_server: RedisServer, caller: Caller, cache: str
) -> None:
    port = free_port()
    url = redis_server.url if cache == "redis" else "memory://"
    gateway = start(f"http://127.0.0.1:{port}", url, cache_timeout=5).ready()
    key = fresh_key()
    for _ in range(3):
        answer = await caller.post(gateway, key)
        assert (answer.status_code, slug(answer)) == (502, "upstream-unreachable")
        assert answer.json()["retryable"] is True
    assert slug(await caller.get(gateway)) == "upstream-unreachable"
    async with Upstream(answering(OK), port=port) as upstream:
        answer = await caller.post(gateway, key)
        assert answer.status_code == 200
        assert upstream.requests[0].value("idempotency-attempt") == "1"
        assert is_replay(await caller.post(gateway, key))
        assert upstream.arrivals == 1


async def test_a_connection_reset_before_the_answer_leaves_the_outcome_unknown(
    gateway: Gateway, ledger: Ledger, caller: Caller
) -> None:
    key = fresh_key()
    ledger.answer(key, Reply(cut="before-head"), Reply(201))
    answer = await caller.post(gateway, key)
    assert (answer.status_code, slug(answer)) == (502, "upstream-failed")
    assert answer.json()["retryable"] is False
    again = await caller.post(gateway, key)
    assert (again.status_code, slug(again)) == (409, "outcome-unknown")
    assert ledger.attempts(key) == ["1"]


async def test_where_the_policy_is_to_retry_an_unknown_outcome_the_next_attempt_is_numbered(
    gateway: Gateway, ledger: Ledger, caller: Caller
) -> None:
    key = fresh_key()
    ledger.answer(key, Reply(cut="before-head"), Reply(504), Reply(cut="in-body"), Reply(201))
    path = "/retry-unknown/payments"
    answer = await caller.post(gateway, key, path)
    assert slug(answer) == "upstream-failed"
    assert answer.json()["retryable"] is True
    assert (await caller.post(gateway, key, path)).status_code == 504
    with RawClient(gateway) as client:
        client.send(raw_post(key, BODY_MARK + b"a-payment", path, "connection: close"))
        client.receive_all()
    assert (await caller.post(gateway, key, path)).status_code == 201
    assert is_replay(await caller.post(gateway, key, path))
    assert ledger.attempts(key) == ["1", "2", "3", "4"]


async def test_a_response_cut_off_in_its_body_is_cut_off_for_the_client_and_never_replayed(
    gateway: Gateway, ledger: Ledger, caller: Caller
) -> None:
    key = fresh_key()
    ledger.answer(key, Reply(200, body=b"half", cut="in-body"), Reply(201))
    with RawClient(gateway) as client:
        client.send(raw_post(key, BODY_MARK + b"a-payment", "/payments", "connection: close"))
        received = client.receive_all()  # the connection closes: by that a client knows that there should be more
    assert b"content-length: 1004" in received.lower() or not received.startswith(b"HTTP/1.1 2")
    assert slug(await caller.settled(gateway, key)) == "outcome-unknown"
    assert ledger.attempts(key) == ["1"]


async def test_while_an_upstream_hangs_the_client_gets_504_and_its_attempt_goes_on(
    gateway: Gateway, ledger: Ledger, caller: Caller
) -> None:
    key, path = fresh_key(), "/impatient/payments"
    with ledger.gate() as gate:
        ledger.answer(key, Reply(gate=gate), Reply(500))
        answer = await caller.post(gateway, key, path)
        assert (answer.status_code, slug(answer)) == (504, "upstream-timeout")
        assert answer.json()["retryable"] is True
        assert slug(await caller.post(gateway, key, path)) == "in-flight"
        waiter = caller.send(gateway, key, path, wait=30)
        gate.open()
        result = await waiter
        assert result.status_code == 201
    await caller.meets_replay(gateway, key, path, of=result)
    assert ledger.attempts(key) == ["1"]


async def test_an_answer_that_trickles_in_byte_by_byte_is_recorded_whole(
    gateway: Gateway, ledger: Ledger, caller: Caller
) -> None:
    key = fresh_key()
    ledger.answer(key, Reply(201, (("x-slow", "yes"),), body=b"drop by drop", trickle=True))
    answer = await caller.post(gateway, key)
    again = await caller.post(gateway, key)
    assert is_replay(again)
    assert answer.content == again.content == b"drop by drop"
    assert again.headers["x-slow"] == "yes"


async def test_an_upstream_that_closes_idle_connections_costs_no_key(
    gateway: Gateway, ledger: Ledger, caller: Caller
) -> None:
    for _ in range(25):
        key = fresh_key()
        closed = ledger.closed
        ledger.answer(key, Reply(201, cut="after-answer"))
        assert (await caller.post(gateway, key)).status_code == 201
        # Its answer didn't say that it would close. Closing takes effect at once; only requests that cross it are in doubt.
        await until(lambda closed=closed: ledger.closed > closed, "the upstream closes the connection")  # type: ignore[misc]  # the loop's value is bound on purpose


async def test_an_upstream_that_answers_nonsense_leaves_the_outcome_unknown(start: Start, caller: Caller) -> None:
    nonsense = [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxx",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 99 Low\r\ncontent-length: 0\r\n\r\n",
    ]
    async with Upstream([answering(answer) for answer in nonsense]) as upstream:
        gateway = start(upstream.url).ready()
        for count, _ in enumerate(nonsense, 1):
            key = fresh_key()
            answer = await caller.post(gateway, key)
            assert (answer.status_code, slug(answer)) == (502, "upstream-failed")
            assert slug(await caller.post(gateway, key)) == "outcome-unknown"
            assert upstream.arrivals == count


async def test_an_attempt_that_runs_out_of_its_time_is_unknown(start: Start, ledger: Ledger, caller: Caller) -> None:
    gateway = start(ledger.url, idempotency={"attempt_timeout": 0.5}).ready()
    key = fresh_key()
    with ledger.gate() as gate:
        ledger.answer(key, Reply(gate=gate), Reply(201))
        answer = await caller.post(gateway, key)
        assert (answer.status_code, slug(answer)) == (502, "upstream-failed")
        assert slug(await caller.post(gateway, key)) == "outcome-unknown"
    assert ledger.attempts(key) == ["1"]


_KEPT_FOR = 0.01
"""Seconds after which the upstream below closes an idle connection, and after which the client asks again."""


class HastyUpstream(Thread):
    """An upstream with a thread for itself, so that it closes idle connections in the very moment when requests go out.

    ``executed`` holds the path of each request that it has read.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.executed: list[str] = []

    def run(self) -> None:
        with suppress(OSError):  # it is closed
            while True:
                with self._listening.accept()[0] as connection:
                    self._serve(connection)

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError):
            while head := connection.recv(65536):
                connection.settimeout(_KEPT_FOR)  # a new one waits for its request
                self.executed.append(head.split(b" ")[1].decode())
                connection.sendall(OK)

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_nothing_runs_twice_where_idle_connections_close_as_requests_go_out(
    start: Start, method: str, keyed: bool
) -> None:
    """Whether a request meets the close, and how, is up to the machine: what is promised holds in each case."""
    upstream = HastyUpstream()
    upstream.start()
    gateway = start(upstream.url, upstream_keepalive=60).ready()
    answered = {}
    async with httpx.AsyncClient(base_url=gateway.url, timeout=PATIENCE, verify=False) as client:
        for number in range(120):
            headers = {"idempotency-key": fresh_key()} if keyed else {}
            answered[f"/{number}"] = (await client.request(method, f"/{number}", headers=headers)).status_code
            await asyncio.sleep(_KEPT_FOR + random.uniform(-0.0005, 0.0005))
    upstream.close()
    executed = Counter(upstream.executed)
    assert all(executed[path] >= 1 for path, status in answered.items() if status == 200)
    assert set(answered.values()) <= {200, 502}
    if method == "GET":
        assert set(answered.values()) == {200}
    else:
        assert set(executed.values()) == {1}
