"""Asynchronous commands through real gateways: killed at each point of a submission, and on Redis beyond one server.

What is in the stream is read behind the gateways' backs. That a command's second copy has no second effect is the consumer's
business (tests/worker).

Rules of docs/contract.md: R8.6, R8.28, R8.30.
"""

import asyncio
from contextlib import suppress
from typing import Any
from uuid import uuid4

import httpx
import pytest

from oncegate.cache.redis.streams.stream import Command, stream_key
from testing.caller import Caller, fresh_key, is_replay, slug
from testing.gateway import DEADLINE, Gateway
from testing.groups import ClusterGroup, SentinelGroup
from testing.ledger import Ledger
from testing.proxy import Then
from testing.servers import RedisServer
from testing.waiting import until
from tests.system.conftest import UNHURRIED, Start
from tests.system.proxy import LossyProxy

ROUTES: list[dict[str, Any]] = [
    {"path": "/reports", "mode": "async", "on_missing_key": "reject"},
    {"path": "/payments", "mode": "either"},
]
ROUTES += [{"path": "/orders/*", "mode": "async", "on_missing_key": "reject", "aggregate": "path", "stream": "orders"}]
RETENTION = 1000
"""Seconds that the record of a dead gateway's attempt reads unknown."""
RULES = {"lease": 300, "ttl": RETENTION, "on_unknown": "refuse"}


@pytest.fixture
def namespace() -> str:
    return uuid4().hex


def begin(start: Start, ledger: Ledger, cache: str, namespace: str, **settings: Any) -> Gateway:
    settings = {"cache_timeout": UNHURRIED, "idempotency": RULES} | settings
    return start(ledger.url, cache, namespace=namespace, routes=ROUTES, **settings)


def copies(server: RedisServer | SentinelGroup | ClusterGroup, namespace: str, name: str = "commands") -> list[Command]:
    """What is in a stream, the oldest first."""
    key = stream_key(namespace, name)
    entries = server.command("XRANGE", key, "-", "+")
    return [Command.read(fields) for _, fields in entries]


def let_lease_lapse(server: RedisServer, namespace: str) -> None:
    """As if the dead gateway's lease were over: the one record that is in flight is left with its retention alone."""
    records = server.command("KEYS", f"{namespace}:*")
    (record,) = [key for key in records if server.command("PTTL", key) > RETENTION * 1000]
    server.command("PEXPIRE", record, RETENTION * 1000 - 1)


async def warm(caller: Caller, gateway: Gateway) -> None:
    """Has a command taken: the connection is open then, and the script is known to Redis."""
    answer = await caller.post(gateway, fresh_key(), "/payments", headers={"prefer": "respond-async"})
    assert answer.status_code == 202


async def kill_at(
    step: str, one: Gateway, proxy: LossyProxy, caller: Caller, key: str, path: str, **options: Any
) -> None:
    """SIGKILL once Redis has taken ``step`` of a submission and the gateway does not know."""
    proxy.lose_reply_to(step, "stall")
    lost = caller.send(one, key, path, **options)
    await until(lambda: proxy.lost, f"{step} is done, and the gateway does not know")
    one.kill()
    await asyncio.wait([lost])
    assert lost.exception()


async def killed_at(
    step: str, one: Gateway, tcp_redis: RedisServer, proxy: LossyProxy, caller: Caller, namespace: str
) -> str:
    """The key of the first submission, at whose ``step`` the gateway was killed."""
    await warm(caller, one.ready())
    tcp_redis.command("DEL", *tcp_redis.command("KEYS", f"*{namespace}:*"))
    key = fresh_key()
    await kill_at(step, one, proxy, caller, key, "/reports")
    return key


async def test_killed_between_append_and_record_the_retry_is_accepted_and_makes_a_second_copy(
    start: Start, tcp_redis: RedisServer, proxy: LossyProxy, ledger: Ledger, caller: Caller, namespace: str
) -> None:
    one = begin(start, ledger, proxy.url, namespace)
    other = begin(start, ledger, tcp_redis.url, namespace).ready()
    key = await killed_at("append", one, tcp_redis, proxy, caller, namespace)
    assert slug(await caller.post(other, key, "/reports")) == "in-flight"

    let_lease_lapse(tcp_redis, namespace)
    accepted = await caller.post(other, key, "/reports")
    assert (accepted.status_code, is_replay(accepted)) == (202, False)
    retry = await caller.post(other, key, "/reports")
    assert (retry.content, is_replay(retry)) == (accepted.content, True)
    first, second = copies(tcp_redis, namespace)
    assert first.command == second.command == accepted.json()["command"]
    assert (first.fingerprint, first.body, first.key) == (second.fingerprint, second.body, key)
    assert ledger.arrivals(key) == []


async def test_one_with_a_number_keeps_it_whatever_dies_between_append_and_record(
    start: Start, tcp_redis: RedisServer, proxy: LossyProxy, ledger: Ledger, caller: Caller, namespace: str
) -> None:
    one = begin(start, ledger, proxy.url, namespace, cache_timeout=3)
    other = begin(start, ledger, tcp_redis.url, namespace, cache_timeout=3).ready()
    await warm(caller, one.ready())
    for key in (fresh_key(), fresh_key()):
        assert (await caller.post(one, key, "/orders/7")).status_code == 202
    tcp_redis.command("DEL", *tcp_redis.command("KEYS", f"{namespace}:*"))
    at_two = {"expected-version": "2"}
    refused, killed = fresh_key(), fresh_key()

    proxy.lose_reply_to("append_numbered", "cut")
    assert slug(await caller.post(one, refused, "/orders/7", headers=at_two)) == "cache-unavailable"
    assert slug(await caller.settled(other, fresh_key(), "/orders/7", headers=at_two)) == "version-conflict"
    accepted = await caller.settled(other, refused, "/orders/7", headers=at_two)
    assert (accepted.status_code, accepted.json()["sequence"]) == (202, 3)

    tcp_redis.command("DEL", *tcp_redis.command("KEYS", f"{namespace}:*"))
    await kill_at("append_numbered", one, proxy, caller, killed, "/orders/7", headers={"expected-version": "3"})
    later = (await caller.post(other, fresh_key(), "/orders/7")).json()
    assert later["sequence"] == 5
    tcp_redis.command("DEL", f"{namespace}:{later['command']}")
    let_lease_lapse(tcp_redis, namespace)
    again = await caller.post(other, killed, "/orders/7", headers={"expected-version": "3"})
    assert (again.status_code, is_replay(again), again.json()["sequence"]) == (202, False, 4)
    replay = await caller.post(other, killed, "/orders/7", headers={"expected-version": "3"})
    assert (replay.content, is_replay(replay)) == (again.content, True)
    entries = tcp_redis.command("XRANGE", stream_key(namespace, "orders"), "-", "+")
    assert entries[3][0].decode() == again.json()["position"]
    assert [command.sequence for command in copies(tcp_redis, namespace, "orders")] == [1, 2, 3, 4, 5]


async def test_killed_before_the_append_the_retry_makes_the_only_copy(
    start: Start, tcp_redis: RedisServer, proxy: LossyProxy, ledger: Ledger, caller: Caller, namespace: str
) -> None:
    one = begin(start, ledger, proxy.url, namespace)
    other = begin(start, ledger, tcp_redis.url, namespace).ready()
    key = await killed_at("claim", one, tcp_redis, proxy, caller, namespace)
    let_lease_lapse(tcp_redis, namespace)
    assert (await caller.post(other, key, "/reports")).status_code == 202
    assert len(copies(tcp_redis, namespace)) == 1


async def test_killed_after_the_record_the_retry_gets_its_202(
    start: Start, tcp_redis: RedisServer, proxy: LossyProxy, ledger: Ledger, caller: Caller, namespace: str
) -> None:
    one = begin(start, ledger, proxy.url, namespace)
    other = begin(start, ledger, tcp_redis.url, namespace).ready()
    key = await killed_at("complete", one, tcp_redis, proxy, caller, namespace)
    answer = await caller.post(other, key, "/reports")
    assert (answer.status_code, is_replay(answer)) == (202, True)
    (command,) = copies(tcp_redis, namespace)
    assert command.command == answer.json()["command"]


@pytest.mark.parametrize(("then", "path"), [("cut", "/reports"), ("cut", "/payments"), ("stall", "/payments")])
async def test_an_append_whose_reply_is_lost_is_503_and_the_retry_is_accepted(
    start: Start,
    tcp_redis: RedisServer,
    proxy: LossyProxy,
    ledger: Ledger,
    caller: Caller,
    namespace: str,
    then: Then,
    path: str,
) -> None:
    gateway = begin(start, ledger, proxy.url, namespace, cache_timeout=3).ready()
    await warm(caller, gateway)
    key = fresh_key()
    proxy.lose_reply_to("append", then)
    refused = await caller.post(gateway, key, path, headers={"prefer": "respond-async"})
    assert (refused.status_code, slug(refused), refused.json()["retryable"]) == (503, "cache-unavailable", True)
    assert refused.headers["retry-after"]
    if path == "/payments":
        executed = await caller.settled(gateway, key, path)
        assert slug(executed) == "outcome-unknown", "a copy waits: it must not be executed beside it"
    accepted = await caller.settled(gateway, key, path, headers={"prefer": "respond-async"})
    assert (accepted.status_code, is_replay(accepted)) == (202, False)
    assert ledger.arrivals(key) == []
    _, first, second = copies(tcp_redis, namespace)
    assert first.command == second.command == accepted.json()["command"]


async def test_a_redis_that_hangs_and_comes_back_loses_no_command(
    start: Start, ledger: Ledger, caller: Caller, namespace: str
) -> None:
    with RedisServer() as server:
        gateway = begin(start, ledger, server.url, namespace, cache_timeout=3).ready()
        await warm(caller, gateway)
        key = fresh_key()
        server.pause()
        assert slug(await caller.post(gateway, key, "/reports")) == "cache-unavailable"
        server.resume()
        assert (await caller.settled(gateway, key, "/reports")).status_code == 202
        assert key in [command.key for command in copies(server, namespace)]


async def test_under_kills_every_202_has_its_command_in_the_stream(
    start: Start, tcp_redis: RedisServer, ledger: Ledger, caller: Caller, namespace: str
) -> None:
    rules = {"lease": 3, "ttl": RETENTION}
    gateways = [begin(start, ledger, tcp_redis.url, namespace, cache_timeout=1, idempotency=rules) for _ in range(3)]
    for gateway in gateways:
        gateway.ready()
    keys = [fresh_key() for _ in range(150)]

    async def submit(number: int) -> dict[str, str]:
        """Tries one gateway after the other until the command is accepted, as a client does whose connection breaks."""
        async with asyncio.timeout(DEADLINE):
            for turn in range(number, 10**6):
                with suppress(httpx.TransportError):
                    answer = await caller.post(gateways[turn % 3], keys[number], "/reports")
                    if answer.status_code == 202:
                        document: dict[str, str] = answer.json()
                        return document
                    assert slug(answer) in ("in-flight", "cache-unavailable")
                    await asyncio.sleep(0.1)
        raise AssertionError

    submissions = [asyncio.create_task(submit(number)) for number in range(150)]
    for doomed, some in ((gateways[0], 20), (gateways[1], 60)):
        await until(lambda: sum(task.done() for task in submissions) >= some, "some are accepted")  # noqa: B023 - awaited here
        doomed.kill()
    accepted = await asyncio.gather(*submissions)
    entries = tcp_redis.command("XRANGE", stream_key(namespace, "commands"), "-", "+")
    held = {entry.decode(): Command.read(fields).command for entry, fields in entries}
    assert [held.get(each["position"]) for each in accepted] == [each["command"] for each in accepted]
    assert set(held.values()) == {each["command"] for each in accepted}


async def test_many_workers_take_commands_and_stop_when_they_are_told(
    start: Start, tcp_redis: RedisServer, ledger: Ledger, caller: Caller, namespace: str
) -> None:
    gateway = begin(start, ledger, tcp_redis.url, namespace, workers=2).ready()
    keys = [fresh_key() for _ in range(40)]
    answers = await asyncio.gather(*[caller.post(gateway, key, "/reports") for key in keys])
    assert {answer.status_code for answer in answers} == {202}
    assert sorted(command.key for command in copies(tcp_redis, namespace)) == sorted(keys)
    gateway.terminate()
    assert await asyncio.to_thread(gateway.exit_code) == 0


async def test_behind_sentinel_commands_are_taken_before_and_after_a_failover(
    start: Start, ledger: Ledger, caller: Caller, namespace: str
) -> None:
    with SentinelGroup() as group:
        gateway = begin(start, ledger, group.url, namespace, cache_timeout=1, idempotency={"lease": 30}).ready()
        before = fresh_key()
        first = await caller.settled(gateway, before, "/reports")
        assert first.status_code == 202
        numbered = fresh_key()
        order = await caller.settled(gateway, numbered, "/orders/7", headers={"expected-version": "0"})
        assert order.status_code == 202
        # What has not reached the replica is lost in a failover, as documented. Writes go there in their order.
        group.command("SET", "mark", 1)
        assert group.command("WAIT", 1, 30_000) == 1
        group.fail_over()
        again = await caller.settled(gateway, before, "/reports")
        assert (again.content, is_replay(again)) == (first.content, True)
        after = fresh_key()
        assert (await caller.settled(gateway, after, "/reports")).status_code == 202
        moved = await caller.settled(gateway, fresh_key(), "/orders/7", headers={"expected-version": "1"})
        assert (moved.status_code, moved.json()["sequence"]) == (202, 2)
        retry = await caller.settled(gateway, numbered, "/orders/7", headers={"expected-version": "0"})
        assert (retry.content, is_replay(retry)) == (order.content, True)
        group.command("DEL", *group.command("KEYS", f"{namespace}:*"))
        retry = await caller.settled(gateway, numbered, "/orders/7", headers={"expected-version": "0"})
        assert (retry.content, is_replay(retry)) == (order.content, False)
        assert [command.sequence for command in copies(group, namespace, "orders")] == [1, 2]
        assert {command.key for command in copies(group, namespace)} == {before, after}


async def test_in_a_cluster_commands_are_taken_and_told_of(
    start: Start, cluster_group: ClusterGroup, ledger: Ledger, caller: Caller, namespace: str
) -> None:
    gateway = begin(start, ledger, cluster_group.url, namespace).ready()
    keys = [fresh_key() for _ in range(10)]  # over all nodes, and one stream
    for key in keys:
        answer = await caller.post(gateway, key, "/reports")
        assert answer.status_code == 202
        headers = {"authorization": answer.request.headers["authorization"]}
        shown = await caller.get(gateway, answer.headers["location"], headers)
        assert (shown.status_code, shown.json()["status"]) == (200, "accepted")
        assert (await caller.get(gateway, answer.headers["location"])).status_code == 404
    assert [command.key for command in copies(cluster_group, namespace)] == keys
    for number, key in enumerate(keys):
        headers = {"expected-version": str(number // 2)}
        answer = await caller.post(gateway, key + "-numbered", f"/orders/{number % 2}", headers=headers)
        assert (answer.status_code, answer.json()["sequence"]) == (202, number // 2 + 1)
    numbers = [command.sequence for command in copies(cluster_group, namespace, "orders")]
    assert numbers == [number // 2 + 1 for number in range(10)]
