"""The middleware twice on one store, around an app and around a part of it, say: the inner one steps aside.

Rules of docs/contract.md: R12.3.
"""

from typing import Any

from oncegate.cache.memory.store import MemoryCache
from oncegate.cache.redis.store import RedisCache
from oncegate.cache.store import Cache
from oncegate.middleware.http.middleware import IdempotencyMiddleware
from tests.middleware.conftest import MakeDoor
from tests.middleware.door import PATIENCE, Answering, Call, Door


def once(call: Call, name: str) -> bool:
    return len(call.values(name.encode())) == 1


async def test_a_command_is_executed_once_and_replayed(door: MakeDoor, cache: Cache, namespace: str) -> None:
    app = Answering(201)
    inner = IdempotencyMiddleware(app, cache=cache, namespace=namespace)
    there = door(inner)
    first = await there.send(b"a body")
    assert (first.status, app.bodies, app.lines("idempotency-attempt")) == (201, [b"a body"], ["1"])
    assert once(first, "cache-status")
    assert once(first, "idempotency-key")
    again = await there.send(b"a body")
    assert (again.status, again.body, again.replayed, app.calls) == (201, first.body, True, 1)
    assert (await there.send(b"another body")).code == "key-reused"
    assert inner.admissions.in_flight.slots.taken == inner.door.buffered.bytes == 0


async def test_two_connections_to_one_redis_are_one_store(redis_url: str, namespace: str) -> None:
    app = Answering(201)
    outer, inner = (RedisCache.from_url(redis_url, timeout=PATIENCE) for _ in range(2))
    there = Door(IdempotencyMiddleware(app, cache=inner, namespace=namespace), outer, namespace)
    for number in range(3):  # over a connection that is open already, it is asked in another way
        assert (await there.send(key=f"k-{number}")).status == 201
    assert app.calls == 3
    await outer.close()
    await inner.close()


async def test_a_request_that_prefers_to_wait_does_not_wait_for_itself(
    door: MakeDoor, cache: Cache, namespace: str
) -> None:
    app = Answering(201)
    there = door(IdempotencyMiddleware(app, cache=cache, namespace=namespace))
    answer = await there.send(headers=[("prefer", "wait=3600")])  # more than a test may take
    assert (answer.status, app.calls, answer.value("preference-applied")) == (201, 1, None)


async def test_what_stands_between_both_may_change_the_body(door: MakeDoor, cache: Cache, namespace: str) -> None:
    app = Answering(201)
    inner = IdempotencyMiddleware(app, cache=cache, namespace=namespace)

    async def changing(scope: Any, receive: Any, send: Any) -> None:
        async def receive_more() -> Any:
            message = await receive()
            return {**message, "body": message["body"] + b", signed"}

        await inner(scope, receive_more, send)

    assert (await door(changing).send(b"a body")).status == 201
    assert app.bodies == [b"a body, signed"]


async def test_an_error_of_the_app_reaches_the_outer_one_as_it_is(door: MakeDoor, cache: Cache, namespace: str) -> None:
    app = Answering(500, 201)
    there = door(IdempotencyMiddleware(app, cache=cache, namespace=namespace))
    assert (await there.send()).status == 500
    assert (await there.send()).status == 201
    assert app.lines("idempotency-attempt") == ["2"]


async def test_on_two_stores_or_in_two_namespaces_both_enforce(door: MakeDoor, cache: Cache, namespace: str) -> None:
    for store, within in ((MemoryCache(), namespace), (cache, f"{namespace}-inner")):
        app = Answering(201)
        inner = Door(app, store, within)
        outer = door(inner.middleware)
        key = f"in-{within}"
        assert (await outer.send(key=key)).status == 201
        again = await inner.send(key=key)  # as another way to it would
        assert again.replayed
        assert app.calls == 1
        assert (await inner.send(key=f"{key}-2")).status == 201
        again = await outer.send(key=f"{key}-2")  # a first request to the outer one, and a retry to the inner one
        assert (again.body, app.calls) == (b"answer 2", 2)


async def test_somebody_else_s_attempt_is_still_in_the_way(door: MakeDoor, cache: Cache, namespace: str) -> None:
    app = Answering(201, held=True)
    inner = Door(app, cache, namespace)
    there = door(inner.middleware)
    async with there.in_flight(app) as running:
        assert (await inner.send()).code == "in-flight"
    assert running.status == 201
