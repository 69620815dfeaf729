"""The end of a process that has requests on the fast path, of clients that have left: what was begun is finished and recorded."""

import asyncio
from contextlib import AsyncExitStack
from uuid import uuid4

import pytest

from oncegate.cache.record import State
from oncegate.cache.redis.store import RedisCache
from testing.inside import redis_cache_of
from testing.servers import RedisServer
from testing.upstreams import PATIENCE, Upstream
from testing.waiting import until
from tests.app.fast_path import Slow, gateway_at, in_flight_of, keyed, talking, tasks_made
from tests.cache.inside import timed

# What goes by the fast path is to stay there until the test says otherwise.
pytestmark = pytest.mark.usefixtures("unhurried")

SLOW = keyed("k", path="/slow")


async def states(redis: RedisServer, namespace: str) -> list[State]:
    """Those of all records but the first one's."""
    cache = RedisCache.from_url(redis.url, timeout=PATIENCE)
    found = [await cache.get(key) for key in (await cache.scan(namespace)).keys]
    await cache.close()
    return [claim.record.state for claim in found if claim is not None]


async def test_an_attempt_of_the_fast_path_is_waited_for(redis: RedisServer) -> None:
    namespace = uuid4().hex
    async with Upstream(slow := Slow()) as upstream, AsyncExitStack() as stack:
        talk, _, port = await stack.enter_async_context(gateway_at(upstream.url, redis.url, namespace=namespace))
        await talk.exchange(keyed())
        async with talking(port) as leaving:
            leaving.writer.write(SLOW)
            await upstream.received(2)
        with tasks_made() as made:
            stopping = asyncio.create_task(stack.aclose())
            _, waits = await asyncio.wait([stopping], timeout=0.2)
            assert waits
            slow.go_on.set()
            await stopping
        assert "InboundRequest._run" not in made
    assert await states(redis, namespace) == [State.SUCCEEDED] * 2


@pytest.mark.parametrize("fault", ["answers late", "answers too late"])
async def test_a_claim_of_the_fast_path_is_waited_for(redis: RedisServer, fault: str) -> None:
    namespace = uuid4().hex
    async with Upstream(slow := Slow()) as upstream:
        slow.go_on.set()
        async with AsyncExitStack() as stack:
            talk, gateway, port = await stack.enter_async_context(
                gateway_at(upstream.url, redis.url, namespace=namespace)
            )
            await talk.exchange(keyed())
            in_flight = in_flight_of(gateway)
            redis.pause()
            with timed(redis_cache_of(gateway), 0.4):
                async with talking(port) as leaving:
                    leaving.writer.write(SLOW)
                    await until(lambda: in_flight.slots.taken, "a claim is under way")
            talk.leave()
            stopping = asyncio.create_task(stack.aclose())
            await asyncio.wait([stopping], timeout=0.1 if fault == "answers late" else 0.6)
            redis.resume()
            await stopping
    kept = await states(redis, namespace)
    assert kept == [State.SUCCEEDED] * upstream.arrivals  # recorded, or never begun and given back
