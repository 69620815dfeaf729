"""What else FastStream does around a handler: replies, stopping, and messages that no handler gets."""

import json
from typing import Any

import aio_pika
import pytest
from faststream.exceptions import SetupError, StopConsume
from faststream.middlewares import AckPolicy, BaseMiddleware
from faststream.rabbit import RabbitBroker

from oncegate.faststream import SubscriptionMiddleware
from testing.waiting import until
from tests.brokers.benches import KEY, RabbitBench
from tests.brokers.conftest import Consumers, settled
from tests.brokers.consumers import Effects, subscription

pytestmark = pytest.mark.parametrize("bench", ["rabbit"], indirect=True)


@pytest.fixture
async def replies(bench: RabbitBench) -> Any:
    """The queue that replies go to."""
    return await bench.channel.declare_queue(f"{bench.name}.replies", durable=True)


async def send_request(bench: RabbitBench, key: str) -> None:
    body = json.dumps({"key": key}).encode()
    message = aio_pika.Message(body, headers={KEY: key}, reply_to=f"{bench.name}.replies", correlation_id=key)
    await bench.channel.default_exchange.publish(message, bench.name)


async def test_a_duplicate_sends_no_empty_reply(
    bench: RabbitBench, consumers: Consumers, effects: Effects, replies: Any
) -> None:
    async def handle(body: dict[str, Any]) -> str:
        effects.add(body["key"])
        return f"paid {body['key']}"

    await consumers.start(handle)
    await send_request(bench, "one")
    await until(lambda: effects.count().get("one"))
    await send_request(bench, "one")
    await send_request(bench, "two")
    await until(lambda: effects.count().get("two"))
    await consumers.end()
    await settled(bench)
    got = [(await replies.get(no_ack=True)).body for _ in range(2)]
    assert got == [b"paid one", b"paid two"]
    assert await replies.get(no_ack=True, fail=False) is None


async def test_a_reply_that_can_not_be_sent_is_no_success(
    bench: RabbitBench, consumers: Consumers, effects: Effects, replies: Any
) -> None:
    """It is sent before the success is recorded: otherwise nobody would ever send it."""

    class Unsent(BaseMiddleware[Any, Any]):
        async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
            if effects.count()["one"] == 1:
                raise ConnectionError("the first reply is not sent")
            return await call_next(cmd)

    async def handle(body: dict[str, Any]) -> str:
        effects.add(body["key"])
        return "paid"

    await consumers.start(handle, before=(Unsent,))
    await send_request(bench, "one")
    await until(lambda: effects.count() == {"one": 2})
    await consumers.end()
    assert (await replies.get(no_ack=True)).body == b"paid"
    await settled(bench)


@pytest.mark.parametrize("policy", [AckPolicy.NACK_ON_ERROR, AckPolicy.REJECT_ON_ERROR])
async def test_a_consumer_that_stops_itself_leaves_the_message_to_others(
    bench: RabbitBench, consumers: Consumers, effects: Effects, policy: AckPolicy
) -> None:
    async def stop(body: dict[str, Any]) -> None:
        effects.add(body["key"])
        raise StopConsume

    async def handle(body: dict[str, Any]) -> None:
        effects.add(body["key"])

    await consumers.start(stop, policy=policy)
    await bench.publish({"key": "one"})
    await until(lambda: effects.count() == {"one": 1})
    await consumers.end()
    await settled(bench, 1)
    assert await bench.dead() == []
    await consumers.start(handle)
    await until(lambda: effects.count() == {"one": 2})
    await consumers.end()
    await settled(bench)


async def test_messages_that_are_fetched_by_hand_are_not_the_middlewares(bench: RabbitBench, redis_url: str) -> None:
    hook = SubscriptionMiddleware(subscription(redis_url, bench.name))
    broker = RabbitBroker(bench.url, middlewares=[hook], logger=None)
    subscriber = broker.subscriber(f"{bench.name}.dead")
    await bench.channel.default_exchange.publish(aio_pika.Message(b"{}"), f"{bench.name}.dead")
    await broker.start()
    with pytest.raises(SetupError, match="use Subscription by hand"):
        await subscriber.get_one(no_ack=False)
    await broker.stop()
    await hook.subscription.cache.close()


async def test_the_answer_to_a_request_passes(bench: RabbitBench, consumers: Consumers, redis_url: str) -> None:
    async def handle(body: dict[str, Any]) -> str:
        return "paid"

    await consumers.start(handle)
    hook = SubscriptionMiddleware(subscription(redis_url, bench.name, on_missing_key="reject"))
    broker = RabbitBroker(bench.url, middlewares=[hook], logger=None)
    await broker.start()
    answer = await broker.request({"key": "one"}, bench.name, headers={KEY: "one"}, timeout=30)
    assert answer.body == b"paid"
    await broker.stop()
    await hook.subscription.cache.close()
