"""Messages as brokers get them: with key, aggregate and number, and removed when the broker has them.

Rules of docs/contract.md: R12.33.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import nats
import pytest
from faststream.kafka import KafkaBroker, KafkaMessage, TestKafkaBroker
from faststream.nats import NatsBroker
from faststream.rabbit import RabbitBroker
from faststream.redis import RedisBroker
from redis.asyncio import Redis
from sqlalchemy.orm import Session

from oncegate.sql import OutboxSource, Relay
from oncegate.sql.outbox.publishing import RedisStreams
from testing.servers import RedisServer
from testing.waiting import until
from tests.sql.outbox.conftest import made
from tests.sql.outbox.sinks import orders, waiting
from tests.sql.places import SyncPlace

STAMPS = {
    "Idempotency-Key": '"k 1"',
    "oncegate-aggregate": "é",
    "oncegate-sequence": "1",
    "x": "ü",
    "content-type": "application/json",
}


@pytest.fixture
def shop(tmp_path: Path) -> SyncPlace:
    place = SyncPlace(f"sqlite:///{tmp_path}/shop.db")
    made(place)
    return place


@pytest.fixture
async def topic(shop: SyncPlace) -> str:
    """With two messages: one with all that a message may have, and one with nothing."""
    name = f"t{uuid4().hex}"

    def add(session: Session) -> None:
        headers = {"x": "ü"}
        orders.add(session, name, {"a": 1}, aggregate="é", key="k 1", headers=headers, correlation="c1")
        orders.add(session, name, b"\xff", key="k2")

    shop.run(add)
    return name


@pytest.fixture
async def source(shop: SyncPlace) -> AsyncIterator[OutboxSource]:
    source = OutboxSource(shop.engine)
    yield source
    await source.close()


async def test_rabbitmq(rabbit_broker_url: str, shop: SyncPlace, source: OutboxSource, topic: str) -> None:
    async with RabbitBroker(rabbit_broker_url) as broker:
        relay = Relay(source, broker)
        assert await relay.publish_batch() == 2
        assert len(waiting(shop)) == 2, "there is no such queue: both are refused, as nobody would get them"
        shop.execute("UPDATE oncegate_outbox SET due_at = NULL")
        connection: Any = await broker.connect()
        channel = await connection.channel()
        queue = await channel.declare_queue(topic, durable=True)
        assert await relay.publish_batch() == 2
        found = {each.message_id: each for each in [await queue.get(no_ack=True) for _ in range(2)]}
    first = found["k 1"]
    assert {name: first.headers[name] for name in STAMPS if name != "content-type"} == {
        name: value for name, value in STAMPS.items() if name != "content-type"
    }
    assert (first.body, first.content_type, first.correlation_id) == (b'{"a":1}', "application/json", "c1")
    assert first.delivery_mode == 2
    assert (found["k2"].body, found["k2"].headers["Idempotency-Key"]) == (b"\xff", "k2")
    assert waiting(shop) == []


async def test_nats(nats_broker_url: str, shop: SyncPlace, source: OutboxSource, topic: str) -> None:
    client = await nats.connect(nats_broker_url)
    jetstream = client.jetstream()
    relay = Relay(source, NatsBroker(nats_broker_url))
    assert await relay.publish_batch() == 2
    assert len(waiting(shop)) == 2, "no stream has the subject: core NATS would have lost them"
    shop.execute("UPDATE oncegate_outbox SET due_at = NULL")
    await jetstream.add_stream(name=topic, subjects=[topic])
    assert await relay.publish_batch() == 2
    subscription = await jetstream.pull_subscribe(topic)
    found = {(each.headers or {})["Nats-Msg-Id"]: each for each in await subscription.fetch(2)}
    first = found["k 1"]
    assert first.headers is not None
    assert {name: first.headers[name] for name in STAMPS} == STAMPS
    assert (first.data, first.headers["correlation_id"], found["k2"].data) == (b'{"a":1}', "c1", b"\xff")
    await jetstream.publish(topic, b"", headers={"Nats-Msg-Id": "k2"})
    assert (await jetstream.stream_info(topic)).state.messages == 2, "a second publication is dropped by its id"
    await client.close()
    await relay._publish._broker.stop()  # type: ignore[attr-defined]  # of a broker's publisher


async def test_redis_by_faststream(redis_broker_url: str, shop: SyncPlace, source: OutboxSource, topic: str) -> None:
    async with RedisBroker(redis_broker_url) as broker:
        assert await Relay(source, broker).publish_batch() == 2
    client = Redis.from_url(redis_broker_url)
    assert await client.xlen(topic) == 2
    await client.aclose()
    assert waiting(shop) == []


async def test_kafka_as_far_as_a_test_broker_shows_it(shop: SyncPlace, source: OutboxSource, topic: str) -> None:
    """No broker was there to publish to: what is built for it, and nothing of its confirmations, or of its partitions."""
    broker = KafkaBroker("127.0.0.1:1")
    found: dict[str, KafkaMessage] = {}

    @broker.subscriber(topic)
    async def consume(_: Any, message: KafkaMessage) -> None:
        found[message.headers["Idempotency-Key"]] = message

    async with TestKafkaBroker(broker):
        assert await Relay(source, broker).publish_batch() == 2
    first, second = found['"k 1"'], found["k2"]
    assert {name: first.headers[name] for name in STAMPS} == STAMPS
    records: list[Any] = [first.raw_message, second.raw_message]  # aiokafka's
    assert (records[0].key, first.body, first.correlation_id) == ("é".encode(), b'{"a":1}', "c1")
    assert (records[1].key or None, second.body) == (None, b"\xff"), "without an aggregate any partition will do"
    assert waiting(shop) == []


async def test_redis_streams(redis_broker_url: str, shop: SyncPlace, source: OutboxSource, topic: str) -> None:
    client = Redis.from_url(redis_broker_url)
    await client.set(topic, "no stream")
    streams = RedisStreams(redis_broker_url)
    assert await Relay(source, streams).publish_batch() == 2
    assert len(waiting(shop)) == 2
    await client.delete(topic)
    shop.execute("UPDATE oncegate_outbox SET due_at = NULL")
    assert await Relay(source, streams).publish_batch() == 2
    entries: Any = await client.xrange(topic)
    found = [fields for _, fields in entries]
    assert {each[b"key"]: each for each in found} == {
        b"k2": {b"key": b"k2", b"body": b"\xff"},
        b"k 1": {
            b"key": b"k 1",
            b"body": b'{"a":1}',
            b"aggregate": "é".encode(),
            b"sequence": b"1",
            b"correlation": b"c1",
            b"headers": '{"x":"ü","content-type":"application/json"}'.encode(),
        },
    }
    await streams.close()
    await client.aclose()


async def test_a_broker_that_is_away_is_waited_for(shop: SyncPlace, source: OutboxSource, topic: str) -> None:
    server = RedisServer()
    with server:
        streams = RedisStreams(server.url, timeout=20)
        server.stop()
        relay = Relay(source, streams)
        assert await relay.publish_batch() is None
        async with relay.running():
            query = "SELECT attempts FROM oncegate_outbox"
            assert [row.attempts for row in shop.in_a_thread(lambda: shop.execute(query))] == [0, 0]
            await asyncio.to_thread(server.start)
            await until(lambda: not waiting(shop))
        await streams.close()
    assert topic
