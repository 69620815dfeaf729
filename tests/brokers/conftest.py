"""Real brokers, started once for all tests of this folder, and a queue in each of them."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from faststream.middlewares import AckPolicy

from oncegate import Delivery, Subscription
from oncegate.cache.record import State
from oncegate.faststream import DeadLetter, SubscriptionMiddleware
from oncegate.middleware.consumers.begun import Begun
from oncegate.middleware.rules.keys.key import execution_key, record_key
from oncegate.sql import Inbox
from testing.brokers import NatsServer
from testing.postgresql import PostgreSQLServer
from testing.servers import RedisServer
from testing.waiting import until
from tests.brokers.benches import BENCHES, Bench, RedisBench
from tests.brokers.consumers import CONSUMERS, Effects, subscription
from tests.sql.places import SyncPlace

WITHIN = 60.0
"""Seconds for what has to happen, on a busy machine."""
PRELOADED = ("tests.brokers.paying", "faststream.rabbit", "faststream.nats", "faststream.redis")
"""What the processes of these tests import (testing/template.py)."""
PAUSE = 0.1
"""Seconds at least between two deliveries of one message."""


async def settled(bench: Bench, but: int = 0) -> None:
    """Waits until all messages are acknowledged or dead-lettered, ``but`` so many: a broker counts them a moment later."""

    async def found() -> bool:
        return await bench.left() == but

    await until(found)


async def recorded(one: Subscription, key: str) -> bool:
    """Whether the success of ``key``, without a caller, is in the cache."""
    found = await one.cache.get(execution_key(record_key(one.namespace, key, None), one.consumer))
    return found is not None and found.record.state is State.SUCCEEDED


@pytest.fixture(scope="session")
def nats_broker_url() -> Iterator[str]:
    with NatsServer() as server:
        yield server.url


@pytest.fixture(scope="session")
def redis_broker_url() -> Iterator[str]:
    """A Redis of its own for messages; records are in the one that all tests share."""
    with RedisServer() as server:
        yield server.url


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQLServer]:
    """Shared by this process's tests: leave it running."""
    with PostgreSQLServer() as server:
        yield server


@pytest.fixture
def place(postgresql: PostgreSQLServer) -> SyncPlace:
    """A database of its own, with its tables."""
    place = SyncPlace(postgresql.url(postgresql.database(), "psycopg"))
    place.prepare()
    return place


@pytest.fixture(params=[*BENCHES])
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    """A queue of each broker in turn."""
    bench = BENCHES[request.param](request.getfixturevalue(f"{request.param}_broker_url"))
    await bench.open()
    if isinstance(bench, RedisBench):
        await bench.join()
    yield bench
    await bench.close()


@pytest.fixture
def effects(tmp_path: Path) -> Effects:
    return Effects(tmp_path / "ledger")


def listen(one: Subscription, on_begun: Callable[[Begun], None]) -> None:
    """Has ``on_begun`` called with each decision; it changes nothing."""
    begin = one.begin

    async def observed_begin(delivery: Delivery) -> Begun:
        begun = await begin(delivery)
        on_begun(begun)
        return begun

    one.begin = observed_begin  # type: ignore[method-assign]  # the test listens in on one object


class Consumers:
    """Consumers of the bench's queue in this process, each with records in the same namespace, as processes of one would be."""

    def __init__(self, bench: Bench, redis_url: str) -> None:
        self._bench = bench
        self._redis_url = redis_url
        self._brokers: list[Any] = []
        self._subscriptions: list[Subscription] = []

    async def start(
        self,
        handler: Callable[..., Any],
        *,
        policy: AckPolicy = AckPolicy.NACK_ON_ERROR,
        cache: str | None = None,
        before: tuple[Any, ...] = (),
        describe: Callable[[Any], Delivery] | None = None,
        dead_letter: DeadLetter | None = None,
        on_begun: Callable[[Begun], None] | None = None,
        inbox: Inbox | None = None,
        sessions: Any = None,
        namespace: str = "",
        **settings: Any,
    ) -> Subscription:
        """``cache`` is another Redis for the records, ``before`` the middlewares around ours; ``on_begun`` gets each decision."""
        one = subscription(cache or self._redis_url, namespace or self._bench.name, **settings)
        if on_begun is not None:
            listen(one, on_begun)
        hook = SubscriptionMiddleware(
            one,
            describe=describe,
            dead_letter=dead_letter,
            pause=PAUSE,
            max_pause=0.5,
            inbox=inbox,
            sessions=sessions,
        )
        broker = CONSUMERS[self._bench.kind](self._bench.url, self._bench.name, [*before, hook], handler, policy)
        self._subscriptions.append(one)
        self._brokers.append(broker)
        await broker.start()
        return one

    async def end(self) -> None:
        """Let them finish what they have begun, and disconnect: what was not acknowledged is in the queue again."""
        while self._brokers:
            await self._brokers.pop().stop()
        while self._subscriptions:
            one = self._subscriptions.pop()
            assert await one.drain(WITHIN) == 0
            await one.cache.close()


@pytest.fixture
async def consumers(bench: Bench, redis_url: str) -> AsyncIterator[Consumers]:
    made = Consumers(bench, redis_url)
    yield made
    await made.end()
