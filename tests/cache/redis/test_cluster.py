"""A Redis Cluster: keys that are elsewhere, on their way, or on a node that is gone."""

import asyncio
import os
import time
import warnings
from collections.abc import AsyncIterator, Iterator

import pytest

from oncegate.cache.errors import CacheUnavailable, CacheUnsupported
from oncegate.cache.record import State
from oncegate.cache.redis.connection.cluster import Cluster, ClusterRoutes
from oncegate.cache.redis.connection.pipe import Bounds
from oncegate.cache.redis.connection.send import LARGE_BYTES
from oncegate.cache.redis.connection.server import Session
from oncegate.cache.redis.connection.withdrawal import Withdrawal, Withdrawals
from oncegate.cache.redis.scripts import pack
from oncegate.cache.redis.store import RedisCache
from oncegate.cache.redis.url import Server
from testing.groups import ClusterGroup, wait_until
from testing.servers import RedisServer
from testing.waiting import until
from tests.cache.inside import set_bounds, timed, topology_of
from tests.cache.traffic import Books, claim, complete, contend, in_time, state, until_claimed, until_completed

TIMEOUT = 0.5
IN_TIME = 30.0


@pytest.fixture
async def cache(cluster_group: ClusterGroup) -> AsyncIterator[RedisCache]:
    made = RedisCache.from_url(cluster_group.url, timeout=30)
    await made.get("nothing")
    yield made
    await made.close()


@pytest.fixture
def moving(cluster_group: ClusterGroup) -> Iterator[tuple[str, str, int]]:
    """Two keys of one slot of the first master, and the slot. It is on its way to the second master; afterwards it is back."""
    tag = cluster_group.key("tag", on=0)
    slot = cluster_group.slot(tag)
    cluster_group.begin_move(slot, 0, 1)
    yield f"{{{tag}}}:one", f"{{{tag}}}:two", slot
    owner = cluster_group.holder(tag)
    if owner == 0:
        cluster_group.end_move(slot, 0, 1)
        owner = 1
    cluster_group.move(slot, owner, 0)


def routes_of(cache: RedisCache) -> ClusterRoutes:
    routes = cache.client.routes[asyncio.get_running_loop()]
    assert isinstance(routes, ClusterRoutes)
    return routes


async def known(cache: RedisCache) -> None:
    """Nothing is left to be asked about who owns what."""
    routes = routes_of(cache)
    await until(lambda: routes._fetching is None and routes._timer is None)


def node(cache: RedisCache, server: RedisServer) -> Session:
    address: Server = ("127.0.0.1", server.port)
    return routes_of(cache)._node(address)


def errors(server: RedisServer, kind: str) -> int:
    """How often a server has answered with such an error."""
    counted = server.command("INFO", "errorstats").get(f"errorstat_{kind}", {})
    return int(counted.get("count", 0))


def test_keys_with_a_hash_tag_share_a_slot(cluster_group: ClusterGroup, moving: tuple[str, str, int]) -> None:
    one, two, slot = moving
    assert cluster_group.slot(one) == cluster_group.slot(two) == slot


async def test_a_first_request_costs_two_commands_and_a_replay_one(
    cluster_group: ClusterGroup, cache: RedisCache
) -> None:
    key, token, server = cluster_group.key("cost", on=1), os.urandom(16), cluster_group.servers[1]
    await claim(cache, cluster_group.key("connects", on=1))
    await known(cache)
    with server.monitored() as seen:
        assert (await claim(cache, key, token)).won
        assert await complete(cache, key, token)
        assert not (await claim(cache, key)).won
    assert [command.split()[0] for command in seen] == ["EVALSHA"] * 3


async def test_a_slot_that_moved_is_followed_at_the_cost_of_one_detour(
    cluster_group: ClusterGroup, cache: RedisCache
) -> None:
    keys = cluster_group.keys("moved", 4, on=0)
    tokens = {key: os.urandom(16) for key in keys}
    for key, token in tokens.items():
        assert (await claim(cache, key, token)).won
    routes = routes_of(cache)
    await known(cache)
    for key in keys:
        cluster_group.move(cluster_group.slot(key), 0, 1)
    before = errors(cluster_group.servers[0], "MOVED")
    assert await complete(cache, keys[0], tokens[keys[0]])
    assert errors(cluster_group.servers[0], "MOVED") == before + 1
    # The whole table was asked for: the other slots cost nothing once it is there.
    await until(lambda: all(routes.holder(key.encode()) is node(cache, cluster_group.servers[1]) for key in keys))
    for key in keys[1:]:
        assert await complete(cache, key, tokens[key], os.urandom(LARGE_BYTES + 1))
        assert await state(cache, key) is State.SUCCEEDED
    assert errors(cluster_group.servers[0], "MOVED") == before + 1
    for key in keys:
        cluster_group.move(cluster_group.slot(key), 1, 0)
        assert await state(cache, key) is State.SUCCEEDED


async def test_while_a_slot_moves_each_key_is_asked_for_where_it_is(
    cluster_group: ClusterGroup, cache: RedisCache
) -> None:
    tag = cluster_group.key("tag", on=0)
    stays, goes, fresh = (f"{{{tag}}}:{name}" for name in ("stays", "goes", "fresh"))
    slot, source, target = cluster_group.slot(tag), cluster_group.servers[0], cluster_group.servers[1]
    tokens = {key: os.urandom(16) for key in (stays, goes, fresh)}
    assert (await claim(cache, goes, tokens[goes])).won
    cluster_group.begin_move(slot, 0, 1)
    assert cluster_group.move_keys(slot, 0, 1) >= 1  # other tests may have keys there
    assert source.command("CLUSTER", "COUNTKEYSINSLOT", slot) == 0
    assert not (await claim(cache, goes)).won
    assert await cache.renew(goes, token=tokens[goes], lease_ms=60_000)
    assert await complete(cache, goes, tokens[goes], os.urandom(LARGE_BYTES + 1))
    assert await state(cache, goes) is State.SUCCEEDED
    assert (await claim(cache, fresh, tokens[fresh])).won
    assert await cache.release(fresh, token=tokens[fresh])
    assert (await claim(cache, fresh, tokens[fresh])).won
    assert source.command("CLUSTER", "COUNTKEYSINSLOT", slot) == 0  # a key that is nowhere is made where the slot goes
    assert errors(source, "ASK") >= 6
    assert routes_of(cache).holder(tag.encode()) is node(cache, source)
    cluster_group.end_move(slot, 0, 1)
    assert await state(cache, fresh) is State.IN_FLIGHT
    assert target.command("EXISTS", fresh) == 1
    assert (await claim(cache, stays)).won
    cluster_group.move(slot, 1, 0)


async def test_flushed_scripts_are_loaded_again_on_the_way_of_a_detour(
    cluster_group: ClusterGroup, cache: RedisCache, moving: tuple[str, str, int]
) -> None:
    one, two, _ = moving
    assert (await claim(cache, one)).won
    for server in cluster_group.servers:
        server.command("SCRIPT", "FLUSH")
    assert (await claim(cache, two)).won
    assert cluster_group.servers[1].command("CLUSTER", "COUNTKEYSINSLOT", cluster_group.slot(two)) == 2


async def test_asking_speaks_for_nobody_but_its_own_command(
    cluster_group: ClusterGroup, cache: RedisCache, moving: tuple[str, str, int]
) -> None:
    """Were it queued and its command refused for want of room, the next command would run on a node that has no say yet."""
    one, two, _ = moving
    target = cluster_group.servers[1]
    await claim(cache, cluster_group.key("connects", on=1))
    pipeline = node(cache, target).claims.pipeline
    assert pipeline is not None
    target.pause()
    set_bounds(pipeline, Bounds(bytes=100))  # room for ASKING, not for the claim
    deadline = asyncio.get_running_loop().time() + 20
    first = pipeline.send(pack(b"PING"), deadline)
    with pytest.raises(CacheUnavailable, match="does not keep up"):
        await claim(cache, one)
    set_bounds(pipeline, Bounds())
    next_one = pipeline.send(pack(b"SET", two.encode(), b"a claim"), deadline)
    target.resume()
    assert await first == b"PONG"
    assert "MOVED" in str(await next_one)


async def test_with_slots_moving_to_and_fro_no_claim_is_won_twice_and_every_record_is_found(
    cluster_group: ClusterGroup,
) -> None:
    caches = [RedisCache.from_url(cluster_group.url, timeout=30) for _ in range(3)]
    tags = cluster_group.keys("tag", 3, on=0)
    slots = [cluster_group.slot(tag) for tag in tags]
    books, stop = Books(), asyncio.Event()
    keys = [[f"{{{tag}}}:w{worker}:{number}" for number in range(100_000)] for worker in range(3) for tag in tags]
    traffic = [asyncio.ensure_future(contend(caches, own, books, stop)) for own in keys]

    def redirections() -> int:
        return sum(errors(server, "ASK") for server in cluster_group.servers)

    def wait_until_redirected_once_more() -> None:
        before = redirections()
        wait_until(lambda: redirections() > before, "a claim has met the move")

    def reshard(source: int, target: int) -> None:
        for slot in slots:
            cluster_group.begin_move(slot, source, target)
            wait_until_redirected_once_more()
            while cluster_group.move_keys(slot, source, target, most=20):
                pass
            cluster_group.end_move(slot, source, target)

    for source, target in ((0, 1), (1, 2), (2, 0)):
        done = len(books.recorded)
        await asyncio.to_thread(reshard, source, target)
        await until(lambda done=done: len(books.recorded) > done + 50)  # type: ignore[misc]  # the loop's value is bound on purpose
    stop.set()
    await asyncio.gather(*traffic)
    assert books.refused == 0
    assert [key for key, winners in books.winners.items() if len(winners) != 1] == []
    for key, token in books.recorded.items():
        held = await caches[0].get(key)
        assert held is not None
        assert (held.record.state, held.record.token) == (State.SUCCEEDED, token)
    for cache in caches:
        await cache.close()


# -- claims whose reply was lost


@pytest.mark.parametrize("arrived", [True, False], ids=["moved", "moving"])
async def test_a_claim_is_withdrawn_where_its_slot_is_now(
    cluster_group: ClusterGroup, cache: RedisCache, arrived: bool
) -> None:
    key, token = cluster_group.key("lost", on=0), os.urandom(16)
    slot = cluster_group.slot(key)
    assert (await claim(cache, key, token)).won
    cluster_group.begin_move(slot, 0, 1)
    assert cluster_group.move_keys(slot, 0, 1) >= 1  # other tests may have keys there
    if arrived:
        cluster_group.end_move(slot, 0, 1)

    def held_by(number: int) -> bool:  # no EXISTS: while a slot is on its way, both would send it on
        return key.encode() in cluster_group.servers[number].command("CLUSTER", "GETKEYSINSLOT", slot, 1000)

    assert held_by(1)
    node(cache, cluster_group.servers[0]).withdraw(Withdrawal(key.encode(), token, time.monotonic() + 60))
    await until(lambda: not held_by(1))
    assert not held_by(0)
    if not arrived:
        cluster_group.end_move(slot, 0, 1)
    cluster_group.move(slot, 1, 0)


async def test_a_claim_that_is_won_after_its_time_out_is_withdrawn(cluster_group: ClusterGroup) -> None:
    cache, server = RedisCache.from_url(cluster_group.url, timeout=30), cluster_group.servers[0]
    await claim(cache, cluster_group.key("connects", on=0))
    key, claimed = cluster_group.key("late", on=0), server.calls("set")
    server.pause()
    with pytest.raises(CacheUnavailable, match="in time"), timed(cache):
        await claim(cache, key)
    server.resume()
    await until(lambda: server.calls("set") > claimed and server.command("EXISTS", key) == 0)
    await cache.close()


# -- nodes that are gone


async def test_a_dead_node_stops_nobody_elses_keys_and_works_again_when_it_is_back() -> None:
    with ClusterGroup() as group:
        cache = RedisCache.from_url(group.url, timeout=2 * IN_TIME)
        keys = [group.key("k", on=number) for number in range(3)]
        for key in keys:
            assert (await claim(cache, key)).won
        group.servers[1].stop()
        for _ in range(20):
            async with asyncio.timeout(IN_TIME):
                with pytest.raises(CacheUnavailable):
                    await claim(cache, keys[1])
            for key in (keys[0], keys[2]):
                assert not (await claim(cache, key)).won
        advice = await cache.check()
        assert any(line.startswith(f"127.0.0.1:{group.servers[1].port}: it can't be used") for line in advice)
        group.servers[1].start()
        assert (await until_claimed(cache, keys[1])).won
        await cache.close()


@pytest.mark.parametrize("hangs", [True, False], ids=["hangs", "killed"])
async def test_a_replica_takes_over_and_completions_land_on_it(hangs: bool) -> None:
    with ClusterGroup(replicas=1, node_timeout=1) as group:
        cache = RedisCache.from_url(group.url, timeout=TIMEOUT)
        key, lost = group.key("k", on=0), group.key("lost", on=0)
        token = (await until_claimed(cache, key)).record.token
        old, replica = group.servers[0], group.servers[3]
        await until(lambda: replica.command("DBSIZE") == 1)
        if hangs:
            old.pause()
            with pytest.raises(CacheUnavailable):
                await claim(cache, lost)  # if it is made at all, then on a node that forgets it when it comes back
        else:
            old.stop()
        assert await until_completed(cache, key, token)
        held = await in_time(lambda: cache.get(key))
        assert held is not None
        assert (held.record.state, held.record.token) == (State.SUCCEEDED, token)
        assert replica.command("ROLE")[0] == b"master"
        answer = await until_claimed(cache, lost)
        assert (answer.won, answer.record.attempt) == (True, 1)
        if hangs:
            await until(lambda: not any(len(each) for each in withdrawals(cache)))
            old.resume()
            await until(lambda: old.command("ROLE")[0] == b"slave", within=60)
            assert not (await until_claimed(cache, lost)).won
        await cache.close()


def withdrawals(cache: RedisCache) -> list[Withdrawals]:
    topology = topology_of(cache)
    assert isinstance(topology, Cluster)
    return list(topology.withdrawals.values())


async def test_a_slot_that_nobody_serves_is_unavailable_in_time(cluster_group: ClusterGroup) -> None:
    cache = RedisCache.from_url(cluster_group.url, timeout=2 * IN_TIME)
    key = cluster_group.key("orphan", on=0)
    await claim(cache, key)
    slot, owner = cluster_group.slot(key), cluster_group.servers[0]
    for server in cluster_group.servers:
        server.command("CLUSTER", "DELSLOTS", slot)
    try:
        async with asyncio.timeout(IN_TIME):
            with pytest.raises(CacheUnavailable, match=r"CLUSTERDOWN|no node of the Redis Cluster serves"):
                await claim(cache, key)
    finally:
        owner.command("CLUSTER", "ADDSLOTS", slot)
    await cache.close()


# -- what it is connected to


async def test_a_server_that_is_no_cluster_is_refused_and_a_cluster_on_a_plain_url_is_told(
    cluster_group: ClusterGroup, redis_server: RedisServer
) -> None:
    cache = RedisCache.from_url(redis_server.url.replace("redis://", "redis+cluster://"), timeout=30)
    with pytest.raises(CacheUnsupported, match="is not part of a cluster: use redis://"):
        await cache.check()
    with pytest.raises(CacheUnavailable, match="is not part of a cluster"):
        await cache.get("k")
    await cache.close()
    cache = RedisCache.from_url(cluster_group.servers[0].url, timeout=30)
    with pytest.raises(CacheUnavailable, match=r"redis\+cluster://"):
        await claim(cache, cluster_group.key("k", on=1))
    await cache.close()


async def test_advice_names_the_node_that_it_is_about(cluster_group: ClusterGroup, cache: RedisCache) -> None:
    advice = await cache.check()
    places = [f"127.0.0.1:{server.port}" for server in cluster_group.servers]
    assert sorted(line.partition(": ")[0] for line in advice if "no persistence" in line) == sorted(places)


def test_each_event_loop_has_connections_of_its_own_and_leaves_none_behind(cluster_group: ClusterGroup) -> None:
    before = [server.connections() for server in cluster_group.servers]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache, key = RedisCache.from_url(cluster_group.url, timeout=30), cluster_group.key("loops")

        async def once() -> bool:
            return (await claim(cache, key)).won

        assert [asyncio.run(once()) for _ in range(3)] == [True, False, False]
        asyncio.run(
            until(lambda: all(s.connections() <= n for s, n in zip(cluster_group.servers, before, strict=True)))
        )
        asyncio.run(cache.close())
