"""Each test that asks for a ``door`` runs on memory and on Redis, and leaves no attempt, slot or background write behind."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest

from oncegate.cache.memory.store import MemoryCache
from oncegate.cache.open import open_cache
from oncegate.cache.redis.store import RedisCache
from oncegate.cache.store import Cache
from oncegate.middleware.admission.observe import Watch
from oncegate.middleware.calls.processor import CommandProcessor
from oncegate.middleware.consumers.delivery import SubscriptionSettings
from oncegate.middleware.consumers.subscription import Subscription
from oncegate.middleware.rules.settings import IdempotencySettings
from testing.servers import RedisServer
from tests.middleware.deliveries import Records
from tests.middleware.door import PATIENCE, Door
from tests.middleware.till import Make

MakeDoor = Callable[..., Door]
MakeSubscription = Callable[..., Subscription]
Elsewhere = Callable[[Callable[[Cache], Coroutine[Any, Any, None]]], None]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What opens a cache by its URL alone takes no slow machine for an outage."""
    defaults = open_cache.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "timeout", PATIENCE)


@pytest.fixture
def namespace() -> str:
    """One per test: the Redis is shared by the whole run."""
    return uuid4().hex


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A Redis of the test's own, to be paused and stopped; its data outlive that."""
    with RedisServer("unix", persist=True) as server:
        yield server


@pytest.fixture(params=["memory", "redis"])
async def cache(request: pytest.FixtureRequest) -> AsyncIterator[Cache]:
    if request.param == "memory":
        yield MemoryCache()
        return
    redis = RedisCache.from_url(request.getfixturevalue("redis_url"), timeout=PATIENCE)
    yield redis
    await redis.close()


@pytest.fixture
async def door(cache: Cache, namespace: str) -> AsyncIterator[MakeDoor]:
    """Makes a `Door` around an app; several share the test's cache and namespace, as the processes of one gateway do."""
    made: list[Door] = []

    def make(app: Any, **options: Any) -> Door:
        made.append(Door(app, cache, namespace, **options))
        return made[-1]

    yield make
    for one in made:
        assert await one.middleware.drain(PATIENCE) == 0, "an attempt does not end"
        assert one.slots == 0, "a slot leaked"
        assert one.buffered == 0, "bytes of a body are still counted"


@pytest.fixture
def elsewhere(cache: Cache, request: pytest.FixtureRequest) -> Elsewhere:
    """Lets this process stand still, as SIGSTOP does, while something is done to the same records in another one's name."""

    async def on_its_own_loop(work: Callable[[Cache], Coroutine[Any, Any, None]]) -> None:
        if isinstance(cache, MemoryCache):
            await work(cache)
            return
        other = RedisCache.from_url(request.getfixturevalue("redis_url"), timeout=PATIENCE)
        try:
            await work(other)
        finally:
            await other.close()

    def stand_still(work: Callable[[Cache], Coroutine[Any, Any, None]]) -> None:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, on_its_own_loop(work)).result()

    return stand_still


@pytest.fixture
async def make(cache: Cache, namespace: str) -> AsyncIterator[Make]:
    made: list[CommandProcessor[Any, Any]] = []

    def make(till: Any, *, result_type: Any = Any, **settings: Any) -> CommandProcessor[Any, Any]:
        async def execute(command: Any) -> Any:
            return await till(command)

        made.append(
            CommandProcessor(
                execute,
                name="pay",
                cache=cache,
                namespace=namespace,
                settings=IdempotencySettings(**settings),
                result_type=result_type,
            )
        )
        return made[-1]

    yield make
    for processor in made:
        assert await processor.drain(30) == 0


@pytest.fixture
def records(cache: Cache, namespace: str) -> Records:
    return Records(cache, namespace)


@pytest.fixture
async def subscribe(cache: Cache, namespace: str) -> AsyncIterator[MakeSubscription]:
    """Makes a `Subscription`; several share the test's cache and namespace, as the processes of one consumer do."""
    made: list[Subscription] = []

    def make(
        consumer: str, *, aliases: tuple[str, ...] = (), watch: Watch | None = None, **settings: Any
    ) -> Subscription:
        rules = SubscriptionSettings(**settings)
        made.append(
            Subscription(consumer, cache=cache, namespace=namespace, aliases=aliases, settings=rules, watch=watch)
        )
        return made[-1]

    yield make
    for one in made:
        assert await one.drain(PATIENCE) == 0, "an attempt does not end"
        assert one.slots == 0, "a slot leaked"
