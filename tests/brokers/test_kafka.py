"""Kafka, in FastStream's in-memory test broker: no broker was there to test against, and none of this shows redelivery."""

from copy import copy
from typing import Any

import pytest
from faststream.exceptions import SetupError
from faststream.kafka import KafkaBroker, TestKafkaBroker
from faststream.middlewares import AckPolicy, BaseMiddleware

from oncegate import Begun, MemoryCache, Subscription, SubscriptionSettings
from oncegate.faststream import SubscriptionMiddleware
from tests.brokers.consumers import kafka


async def test_a_command_runs_once_and_another_payload_is_put_aside() -> None:
    ran: list[str] = []
    aside: list[tuple[bytes, str]] = []

    async def handle(body: str) -> None:
        ran.append(body)

    async def put_aside(message: Any, begun: Begun) -> None:
        aside.append((message.body, begun.decision.value))

    subscription = Subscription("billing", cache=MemoryCache())
    hook = SubscriptionMiddleware(subscription, dead_letter=put_aside)
    async with TestKafkaBroker(kafka("127.0.0.1", "payments", [hook], handle)) as broker:
        for body in ("five", "five", "six"):
            await broker.publish(body, "payments", headers={"Idempotency-Key": "one"})
    assert ran == ["five"]
    assert aside == [(b"six", "key-reused")]


async def test_a_failure_is_put_aside_after_its_last_attempt() -> None:
    aside: list[int] = []

    async def handle(body: str) -> None:
        raise ValueError("no such account")

    async def put_aside(message: Any, begun: Begun) -> None:
        aside.append(begun.attempt)

    rules = SubscriptionSettings(max_attempts=2)
    subscription = Subscription("billing", cache=MemoryCache(), settings=rules)
    hook = SubscriptionMiddleware(subscription, dead_letter=put_aside, pause=0.001)
    async with TestKafkaBroker(kafka("127.0.0.1", "payments", [hook], handle)) as broker:
        for _ in range(2):
            await broker.publish("five", "payments", headers={"Idempotency-Key": "one"})
    assert aside == [2]


async def test_the_header_can_have_another_name_and_the_message_be_a_copy() -> None:
    ran: list[str] = []

    class Copying(BaseMiddleware[Any, Any]):
        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            return await call_next(copy(msg))

    async def handle(body: str) -> None:
        ran.append(body)

    hook = SubscriptionMiddleware(Subscription("billing", cache=MemoryCache()), header="Request-Id", dead_letter=aside)
    async with TestKafkaBroker(kafka("127.0.0.1", "payments", [Copying, hook], handle)) as broker:
        for body, key in (("five", "one"), ("five", "one"), ("five", "two")):
            await broker.publish(body, "payments", headers={"request-id": key, "Idempotency-Key": "other"})
    assert ran == ["five", "five"]


async def aside(message: Any, begun: Begun) -> None:
    raise AssertionError("never called")


async def test_an_unsafe_policy_is_refused_under_a_test_broker_too() -> None:
    async def handle(body: str) -> None:
        raise AssertionError("never called")

    hook = SubscriptionMiddleware(Subscription("billing", cache=MemoryCache()))
    consumer: KafkaBroker = kafka("127.0.0.1", "payments", [hook], handle, AckPolicy.ACK_FIRST)
    async with TestKafkaBroker(consumer) as broker:
        with pytest.raises(SetupError, match="ack_policy ACK_FIRST"):
            await broker.publish("five", "payments", headers={"Idempotency-Key": "one"})


async def test_ids_are_on_each_line_and_come_with_what_is_put_aside(caplog: pytest.LogCaptureFixture) -> None:
    aside: list[tuple[str, str, str]] = []

    async def handle(body: str) -> None:
        raise ValueError("no such account")

    async def put_aside(message: Any, begun: Begun) -> None:
        aside.append((begun.record, *begun.origin))

    rules = SubscriptionSettings(max_attempts=1)
    subscription = Subscription("billing", cache=MemoryCache(), settings=rules)
    hook = SubscriptionMiddleware(subscription, dead_letter=put_aside)
    async with TestKafkaBroker(kafka("127.0.0.1", "payments", [hook], handle)) as broker:
        await broker.publish("five", "payments", headers={"Idempotency-Key": "one"}, correlation_id="c-17")
    ((record, message, correlation),) = aside
    assert (message.startswith("payments/"), correlation) == (True, "c-17")
    found = [each.getMessage() for each in caplog.records if each.name.startswith("oncegate.")]
    assert {line.partition(": ")[0] for line in found} == {f"record {record}, message {message}, correlation c-17"}
