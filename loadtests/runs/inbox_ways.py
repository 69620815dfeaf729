"""The two ways of a payment to its consumers in `loadtests.runs.inbox`: over the gateway, and over RabbitMQ."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import aio_pika
import httpx

from loadtests import rabbit
from loadtests.runs.commands import WORKER
from loadtests.runs.inbox_handler import MAX_ATTEMPTS
from loadtests.runs.starting import submissions
from oncegate.cache.redis.streams.stream import dead_letters_key, stream_key
from testing.brokers import RabbitServer
from testing.gateway import Gateway
from testing.servers import RedisServer

NAMESPACE, ROUTE, QUEUE = "run", "/payments", "inbox run"
FORGOTTEN = 0.2
"""The share of the hook's records that is deleted at each shot."""


class OverGateway:
    """HTTP, the gateway, its stream, and `oncegate worker`."""

    def __init__(self, gateway: Gateway, server: RedisServer, seed: int) -> None:
        self.refused = 0
        self.published_again = 0
        self.records_forgotten = 0
        self._gateway = gateway
        self._redis: Any = server.client()
        self._chance = random.Random(seed)
        self._stream = stream_key(NAMESPACE, "commands")

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Connected within it."""
        async with httpx.AsyncClient(base_url=self._gateway.url, timeout=60, trust_env=False) as self._client:
            yield

    async def send(self, key: str, body: bytes) -> None:
        """Until it is accepted."""
        headers = {"idempotency-key": key, "content-type": "application/json"}
        while True:
            try:
                answer = await self._client.post(ROUTE, content=body, headers=headers)
            except (
                httpx.TransportError
            ):  # a connection that the gateway had closed as idle: under its key it is sent again
                continue
            if answer.status_code == 202:
                return
            if answer.status_code not in (409, 503):
                raise RuntimeError(f"a submission was answered {answer.status_code}: {answer.text}")
            self.refused += 1
            await asyncio.sleep(0.05)

    async def publish_again(self) -> None:
        """A copy of one of the newest entries, under a new id, as a broker makes it that redelivers what it published."""
        newest = self._redis.xrevrange(self._stream, count=200)
        if newest:
            self._redis.xadd(self._stream, self._chance.choice(newest)[1])
            self.published_again += 1

    def forget(self) -> None:
        """Delete records of the hook, as a Redis does that lost writes: what is executed, and what was."""
        for key in self._redis.scan_iter(match="*}:commands", count=1000):
            if self._chance.random() < FORGOTTEN:
                self.records_forgotten += int(self._redis.delete(key))

    async def is_idle(self) -> bool:
        """Whether everything was delivered and acknowledged."""
        if not self._redis.exists(self._stream):
            return False
        groups = self._redis.xinfo_groups(self._stream)
        newest = self._redis.xinfo_stream(self._stream)["last-generated-id"]
        return bool(groups) and not int(groups[0]["pending"]) and groups[0]["last-delivered-id"] == newest

    async def dead_letters(self) -> int:
        """How many there are; none should be."""
        return int(self._redis.xlen(dead_letters_key(NAMESPACE, "commands")))


class OverRabbitMQ:
    """RabbitMQ, and consumers with the hook by hand."""

    def __init__(self, url: str, seed: int) -> None:
        self.refused = 0
        self.published_again = 0
        self.records_forgotten = 0
        self._url = url
        self._chance = random.Random(seed)
        self._published: list[tuple[str, bytes]] = []

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Connected within it."""
        async with await aio_pika.connect(self._url) as connection:
            self._channel = await connection.channel()  # with confirms
            yield

    async def send(self, key: str, body: bytes) -> None:
        """Until it is accepted."""
        message = aio_pika.Message(
            body, headers={"Idempotency-Key": key}, delivery_mode=aio_pika.DeliveryMode.PERSISTENT
        )
        await self._channel.default_exchange.publish(message, QUEUE)
        self._published.append((key, body))

    async def publish_again(self) -> None:
        """One of those that were published before, as a publisher does it that got no confirmation."""
        if self._published:
            await self.send(*self._chance.choice(self._published))
            self.published_again += 1

    def forget(self) -> None:
        """Nothing: the records of each consumer are gone with its process."""

    async def is_idle(self) -> bool:
        """Whether nothing waits; what consumers hold is not counted."""
        return not await rabbit.count(self._channel, QUEUE)

    async def dead_letters(self) -> int:
        """How many there are; none should be."""
        return await rabbit.count(self._channel, f"{QUEUE}.dead")


Way = OverGateway | OverRabbitMQ


@contextmanager
def over_gateway(folder: Path, seed: int, _: str) -> Iterator[tuple[OverGateway, list[str]]]:
    """The way, and the command of its consumers."""
    with RedisServer(config={"maxmemory-policy": "noeviction"}) as server:
        gateway = submissions(folder / "gateway.log", server.url, NAMESPACE, [{"path": ROUTE, "mode": "async"}])
        worker = [*WORKER, "--cache", server.url, "--namespace", NAMESPACE, "--max-attempts", str(MAX_ATTEMPTS)]
        try:
            yield (
                OverGateway(gateway.ready(), server, seed),
                [*worker, "--handler", "loadtests.runs.inbox_handler:pay"],
            )
        finally:
            gateway.end()


@contextmanager
def over_rabbitmq(_: Path, seed: int, broker: str) -> Iterator[tuple[OverRabbitMQ, list[str]]]:
    """The way, and the command of its consumers."""

    async def declare(url: str) -> None:
        async with await aio_pika.connect(url) as connection:
            await rabbit.declare(await connection.channel(), QUEUE)

    with nullcontext() if broker else RabbitServer() as server:
        url = server.url if server else broker
        asyncio.run(declare(url))
        yield OverRabbitMQ(url, seed), ["-m", "loadtests.runs.inbox_handler", url, QUEUE]


ON_RECORDS = "rabbitmq-records"
"""The hook's records are in PostgreSQL."""
WAYS: dict[str, Callable[[Path, int, str], AbstractContextManager[tuple[Way, list[str]]]]] = {
    "gateway": over_gateway,
    "rabbitmq": over_rabbitmq,
    ON_RECORDS: over_rabbitmq,
}
"""The way by its name, and the command of its consumers; by a folder for logs, a seed, and the URL of a RabbitMQ, or ""."""
