"""What is refused at the start, in one line that says what to set, because messages would be lost or mixed up."""

import re
from typing import Any

import pytest
from faststream.exceptions import SetupError
from faststream.kafka import KafkaBroker
from faststream.middlewares import AckPolicy
from faststream.nats import JStream, NatsBroker, PullSub
from faststream.rabbit import RabbitBroker, RabbitQueue, RabbitRouter
from faststream.redis import ListSub, RedisBroker, StreamSub
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from oncegate import MemoryCache, Subscription, SubscriptionSettings
from oncegate.faststream import SubscriptionMiddleware
from oncegate.faststream.rules import broker_of, complaint
from oncegate.sql import Inbox
from tests.brokers.benches import Bench
from tests.brokers.conftest import Consumers

billing = Inbox("billing")


def hook(name: str = "billing", **options: Any) -> SubscriptionMiddleware:
    return SubscriptionMiddleware(Subscription(name, cache=MemoryCache()), **options)


async def handle(body: Any) -> None:
    raise AssertionError("never called")


def start(broker: Any, subscriber: Any) -> None:
    """What is looked at at the start, without a server."""
    (middleware,) = broker.middlewares
    middleware.check(subscriber)


def refused(broker: Any, subscriber: Any, message: str) -> None:
    with pytest.raises(SetupError) as error:
        start(broker, subscriber)
    assert re.search(message, str(error.value)), str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.filterwarnings("ignore:.*ACK_FIRST.*:RuntimeWarning")
@pytest.mark.parametrize("policy", [AckPolicy.ACK_FIRST, AckPolicy.ACK, AckPolicy.MANUAL])
async def test_an_unsafe_policy_stops_the_start_of_a_real_consumer(
    bench: Bench, consumers: Consumers, policy: AckPolicy
) -> None:
    with pytest.raises(SetupError, match=r"handle: ack_policy \w+ .*: set ack_policy=AckPolicy.NACK_ON_ERROR$"):
        await consumers.start(handle, policy=policy)


def test_a_push_consumer_of_nats_that_acknowledges_first_is_refused() -> None:
    broker = NatsBroker(middlewares=[hook()])
    subscriber = broker.subscriber("s", stream=JStream("s"), ack_policy=AckPolicy.ACK_FIRST)
    subscriber(handle)
    refused(broker, subscriber, "set ack_policy=AckPolicy.NACK_ON_ERROR$")


def test_the_default_of_each_broker() -> None:
    rabbit, redis = RabbitBroker(middlewares=[hook()]), RedisBroker(middlewares=[hook()])
    nats, kafka = NatsBroker(middlewares=[hook()]), KafkaBroker(middlewares=[hook(dead_letter=handle)])
    for broker, subscriber in (
        (rabbit, rabbit.subscriber("q")),
        (redis, redis.subscriber(stream=StreamSub("s", group="g", consumer="c"))),
        (nats, nats.subscriber("s", stream=JStream("s"))),
    ):
        subscriber(handle)
        start(broker, subscriber)
    acknowledges_first = kafka.subscriber("t")
    acknowledges_first(handle)
    refused(kafka, acknowledges_first, "kafka consumer handle: ack_policy ACK_FIRST")


def test_a_policy_of_the_whole_broker_counts() -> None:
    broker = RabbitBroker(middlewares=[hook()], ack_policy=AckPolicy.ACK)
    subscriber = broker.subscriber("q")
    subscriber(handle)
    refused(broker, subscriber, "ack_policy ACK ")


def test_a_consumer_that_nothing_is_delivered_to_again_is_refused() -> None:
    nats, redis = NatsBroker(middlewares=[hook()]), RedisBroker(middlewares=[hook()])
    for broker, subscriber, what in (
        (nats, nats.subscriber("s"), r"set stream=JStream\(\.\.\.\)$"),
        (redis, redis.subscriber("channel"), "set stream=StreamSub"),
        (redis, redis.subscriber(list=ListSub("l")), "set stream=StreamSub"),
        (redis, redis.subscriber(stream="s"), "set stream=StreamSub"),
        (redis, redis.subscriber(stream=StreamSub("s", group="g", consumer="c", no_ack=True)), "without no_ack$"),
    ):
        subscriber(handle)
        refused(broker, subscriber, what)


def test_batches_are_refused() -> None:
    nats, redis = NatsBroker(middlewares=[hook()]), RedisBroker(middlewares=[hook()])
    kafka = KafkaBroker(middlewares=[hook(dead_letter=handle)])
    for broker, subscriber in (
        (nats, nats.subscriber("s", stream=JStream("s"), pull_sub=PullSub(batch=True))),
        (redis, redis.subscriber(stream=StreamSub("s", group="g", consumer="c", batch=True))),
        (kafka, kafka.subscriber("t", batch=True, ack_policy=AckPolicy.NACK_ON_ERROR)),
    ):
        subscriber(handle)
        refused(broker, subscriber, "a batch has no one idempotency key: .* by hand with Inbox.first_many$")


@pytest.mark.filterwarnings("ignore:AckPolicy.REJECT_ON_ERROR:UserWarning")
def test_kafka_needs_a_place_for_dead_letters() -> None:
    broker = KafkaBroker(middlewares=[hook()])
    subscriber = broker.subscriber("t", ack_policy=AckPolicy.NACK_ON_ERROR)
    subscriber(handle)
    refused(broker, subscriber, "Kafka has no dead letters")
    rejecting = KafkaBroker(middlewares=[hook(dead_letter=handle)])
    subscriber = rejecting.subscriber("t", ack_policy=AckPolicy.REJECT_ON_ERROR)
    subscriber(handle)
    refused(rejecting, subscriber, "ack_policy REJECT_ON_ERROR")


def test_two_handlers_do_not_share_the_records_of_one_consumer() -> None:
    async def other(body: Any) -> None:
        raise AssertionError("never called")

    broker = RabbitBroker(middlewares=[hook()])
    first, second = broker.subscriber("one"), broker.subscriber("two")
    first(handle)
    second(other)
    start(broker, first)
    refused(broker, second, "other would share the records of the consumer 'billing'")
    mail = hook("mail")
    router = RabbitRouter(middlewares=[mail])
    third = router.subscriber("three")
    third(other)
    mail.check(third)


def test_a_second_middleware_does_not_make_two_handlers_one_consumer_s() -> None:
    async def other(body: Any) -> None:
        raise AssertionError("never called")

    one = hook()
    first, second = (
        RabbitBroker(middlewares=[one]),
        RabbitBroker(middlewares=[SubscriptionMiddleware(one.subscription)]),
    )
    subscribers = [broker.subscriber("one") for broker in (first, second)]
    subscribers[0](handle)
    subscribers[1](other)
    start(first, subscribers[0])
    refused(second, subscribers[1], "other would share the records of the consumer 'billing'")


def test_a_broker_that_nothing_is_known_of_is_refused() -> None:
    confluent = type("DefaultSubscriber", (), {"__module__": "faststream.confluent.subscriber.usecase"})
    assert broker_of(confluent()) == "confluent"
    assert complaint(confluent(), dead_letter=True) == "this broker is not supported: use Subscription by hand"


def test_a_queue_that_discards_what_is_rejected_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    broker = RabbitBroker(middlewares=[hook()])
    kept = RabbitQueue("kept", arguments={"x-dead-letter-exchange": "dead"})
    for queue, warned in ((kept, False), (RabbitQueue("lost"), True)):
        subscriber = broker.subscriber(queue)
        subscriber(handle)
        caplog.clear()
        hooked = hook()
        hooked.check(subscriber)
        hooked.check(subscriber)
        assert [record.getMessage()[:10] for record in caplog.records] == ["queue lost"] * warned


def test_pauses_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="pause must be above 0"):
        hook(pause=0)
    with pytest.raises(ValueError, match="max_pause no less than pause"):
        hook(pause=2, max_pause=1)


def sessions() -> Any:
    return async_sessionmaker(create_async_engine("sqlite+aiosqlite://"))


@billing.transaction(sessions())
async def with_its_own(body: Any, session: AsyncSession) -> None:
    raise AssertionError("never called")


def plain(body: Any) -> None:
    raise AssertionError("never called")


def by_message_id(**options: Any) -> SubscriptionMiddleware:
    settings = SubscriptionSettings(on_missing_key="message_id")
    subscription = Subscription("billing", cache=MemoryCache(), settings=settings)
    given: dict[str, Any] = {"dead_letter": handle, **options}
    return SubscriptionMiddleware(subscription, **given)


@pytest.mark.parametrize("own", [True, False])
def test_a_position_as_the_key_of_an_inbox_is_refused(own: bool) -> None:
    """Kafka's and NATS' begin again where a topic or stream is made anew: new messages would be skipped as old."""

    def middleware() -> SubscriptionMiddleware:
        return by_message_id() if own else by_message_id(inbox=billing, sessions=sessions())

    handler = with_its_own if own else handle
    nats, kafka = NatsBroker(middlewares=[middleware()]), KafkaBroker(middlewares=[middleware()])
    of_position: Any = (
        (nats, nats.subscriber("s", stream=JStream("s"))),
        (kafka, kafka.subscriber("t", ack_policy=AckPolicy.NACK_ON_ERROR)),
    )
    for broker, subscriber in of_position:
        subscriber(handler)
        refused(broker, subscriber, 'on_missing_key = "message_id" is a position here')
    rabbit, redis = RabbitBroker(middlewares=[middleware()]), RedisBroker(middlewares=[middleware()])
    others: Any = (
        (rabbit, rabbit.subscriber("q")),
        (redis, redis.subscriber(stream=StreamSub("s", group="g", consumer="c"))),
    )
    for broker, subscriber in others:
        subscriber(handler)
        start(broker, subscriber)
    without = NatsBroker(middlewares=[by_message_id()])
    alone = without.subscriber("s", stream=JStream("s"))
    alone(handle)
    start(without, alone)


def test_a_handler_that_an_inbox_does_not_fit_is_refused() -> None:
    for handler, why in (
        (with_its_own, "has an inbox of its own"),
        (plain, r"a plain function takes no AsyncSession: decorate it with Inbox\.transaction"),
    ):
        broker = RabbitBroker(middlewares=[hook(inbox=billing, sessions=sessions())])
        subscriber = broker.subscriber("q")
        subscriber(handler)
        refused(broker, subscriber, why)


def test_an_inbox_needs_sessions_of_asyncio() -> None:
    for options, why in (
        ({"inbox": billing}, "give an async_sessionmaker"),
        ({"inbox": billing, "sessions": sessionmaker()}, "sessions is a sessionmaker: give an async_sessionmaker"),
        ({"sessions": sessions()}, "give it too"),
    ):
        with pytest.raises(TypeError, match=why):
            hook(**options)
