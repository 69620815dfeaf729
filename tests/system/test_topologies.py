"""Gateways on Redis beyond one server: a failover and a resharding in mid-attempt, a node that dies."""

from collections.abc import Iterator

import pytest

from testing.caller import Caller, fresh_key, is_replay, slug, until_answer
from testing.gateway import Gateway
from testing.groups import ClusterGroup, SentinelGroup
from testing.ledger import Ledger, Reply
from testing.servers import RedisServer
from testing.waiting import until
from tests.system.conftest import Start


@pytest.fixture
def group(directed: bool) -> Iterator[SentinelGroup]:
    """One whose master is replaced as soon as it is gone; or when it is told to alone, however long a machine stands still."""
    with SentinelGroup(down_after=30 if directed else 1) as made:
        yield made


def start_two(start: Start, ledger: Ledger, url: str) -> list[Gateway]:
    # A Sentinel that stood still for seconds does nothing for half a minute.
    patient = {"lease": 120, "response_timeout": 100}
    gateways = [start(ledger.url, url, cache_timeout=1, idempotency=patient) for _ in range(2)]
    return [gateway.ready() for gateway in gateways]


def records(servers: list[RedisServer]) -> dict[bytes, RedisServer]:
    """Every record, and the server that has it."""
    return {key: server for server in servers for key in server.command("KEYS", "system:*")}


@pytest.mark.parametrize("directed", [False, True], ids=["killed", "directed"])
async def test_a_failover_in_mid_attempt_costs_neither_the_response_nor_the_record(
    start: Start, group: SentinelGroup, ledger: Ledger, caller: Caller, directed: bool
) -> None:
    one, other = start_two(start, ledger, group.url)
    key = fresh_key()
    async with caller.held(ledger, one, key, then=Reply(500)) as (task, gate):
        await until(lambda: all(records([server]) for server in group.servers), "the claim is replicated")
        if directed:
            group.fail_over()
        else:
            old = group.master
            old.stop()
            assert slug(await caller.post(one, fresh_key())) == "cache-unavailable"
            group.wait_for_another_master(old)
        gate.open()
        answer = await task
    assert answer.status_code == 201
    await caller.meets_replay(other, key, of=answer)
    assert ledger.attempts(key) == ["1"]


async def test_a_resharding_in_mid_attempt_is_not_noticed(
    start: Start, cluster_group: ClusterGroup, ledger: Ledger, caller: Caller
) -> None:
    one, other = start_two(start, ledger, cluster_group.url)
    masters = cluster_group.servers
    keys = [fresh_key() for _ in range(6)]
    with ledger.gate() as gate:
        for key in keys:
            ledger.answer(key, Reply(gate=gate), Reply(500))
        tasks = [caller.send(one, key) for key in keys]
        await until(lambda: all(ledger.arrivals(key) for key in keys), "the requests arrive")
        held = records(masters)
        assert len(held) == len(keys)
        moves = []
        for record, server in held.items():
            source = masters.index(server)
            moves.append((cluster_group.slot(record.decode()), source, (source + 1) % 3))
        moves = list(dict.fromkeys(moves))  # two records may share a slot
        for slot, source, target in moves:  # half of the records have arrived, half are on their way
            cluster_group.begin_move(slot, source, target)
            cluster_group.move_keys(slot, source, target)
        for slot, source, target in moves[::2]:
            cluster_group.end_move(slot, source, target)
        for key in keys:
            await until_answer(lambda key=key: caller.post(other, key), "in-flight")  # type: ignore[misc]  # the loop's value is bound on purpose
        gate.open()
        answers = [await task for task in tasks]
    for slot, source, target in moves[1::2]:
        cluster_group.end_move(slot, source, target)
    for key, answer in zip(keys, answers, strict=True):
        assert answer.status_code == 201
        for gateway in (one, other):
            await caller.meets_replay(gateway, key, of=answer)
        assert ledger.attempts(key) == ["1"]


async def test_a_dead_node_of_a_cluster_costs_only_its_own_keys_their_service(
    start: Start, ledger: Ledger, caller: Caller
) -> None:
    with ClusterGroup() as cluster:
        (gateway, _) = start_two(start, ledger, cluster.url)
        assert (await caller.settled(gateway, fresh_key())).status_code == 201
        cluster.servers[0].stop()
        keys = [fresh_key() for _ in range(40)]
        answers = {key: await caller.post(gateway, key) for key in keys}
        refused = [key for key in keys if slug(answers[key]) == "cache-unavailable"]
        assert 0 < len(refused) < len(keys)
        assert all(answers[key].status_code == 201 for key in keys if key not in refused)
        assert all(ledger.arrivals(key) == [] for key in refused)
        cluster.servers[0].start()
        for key in refused:
            answer = await caller.settled(gateway, key)
            assert (answer.status_code, is_replay(answer)) == (201, False)
            assert ledger.attempts(key) == ["1"]
