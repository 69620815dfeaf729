"""The hook for consumers: each command is executed once by each consumer, whatever is delivered again."""

from typing import Any

from oncegate import Action, Delivery, DeliveryDecision, Recording
from oncegate.cache.base import Cache
from oncegate.cache.record import State
from oncegate.middleware.key import execution_key, record_key
from tests.middleware.conftest import MakeSubscription

PAY = Delivery("key-1", b'{"amount": 5}')


async def test_a_first_delivery_runs_and_its_redelivery_is_a_duplicate(subscribe: MakeSubscription) -> None:
    ledger = subscribe("ledger")
    first = await ledger.begin(PAY)
    assert (first.decision, first.action, first.attempt) == (DeliveryDecision.RUN, Action.RUN, 1)
    assert await first.succeed(b'{"number": 1}') is Recording.RECORDED
    assert first.action is Action.ACKNOWLEDGE
    again = await ledger.begin(PAY)
    assert (again.decision, again.action, again.attempt) == (DeliveryDecision.DUPLICATE, Action.ACKNOWLEDGE, 1)
    assert again.result == b'{"number": 1}'
    assert again.record == first.record


async def test_each_consumer_has_records_of_its_own(subscribe: MakeSubscription, cache: Cache, namespace: str) -> None:
    for consumer in ("ledger", "mail"):
        begun = await subscribe(consumer).begin(PAY)
        assert begun.run
        await begun.succeed()
        found = await cache.get(execution_key(record_key(namespace, "key-1", None), consumer))
        assert found is not None
        assert found.record.state is State.SUCCEEDED


async def test_what_is_in_flight_elsewhere_is_not_acknowledged(subscribe: MakeSubscription) -> None:
    first = await subscribe("ledger").begin(PAY)
    other = await subscribe("ledger").begin(PAY)
    assert (other.decision, other.action) == (DeliveryDecision.IN_FLIGHT, Action.REDELIVER)
    await first.succeed()


async def test_another_payload_under_the_same_key_never_runs(subscribe: MakeSubscription) -> None:
    ledger = subscribe("ledger")
    await (await ledger.begin(PAY)).succeed()
    other = await ledger.begin(Delivery("key-1", b'{"amount": 500}'))
    assert (other.decision, other.action) == (DeliveryDecision.MISMATCH, Action.DEAD_LETTER)


async def test_a_command_that_always_fails_is_dead_after_the_last_attempt(
    subscribe: MakeSubscription, cache: Cache, namespace: str
) -> None:
    ledger = subscribe("ledger", max_attempts=2)
    first = await ledger.begin(PAY)
    await first.fail(ValueError("no such account"))
    assert first.action is Action.REDELIVER
    second = await ledger.begin(PAY)
    assert second.attempt == 2
    await second.fail(ValueError("no such account"))
    assert second.action is Action.DEAD_LETTER
    third = await ledger.begin(PAY)
    assert (third.decision, third.action) == (DeliveryDecision.EXHAUSTED, Action.DEAD_LETTER)
    assert third.response is not None
    assert third.response.body == b'{"type":"ValueError","message":"no such account","dead":true}'
    again = await ledger.begin(Delivery("key-1", PAY.payload, attempts_before=2))
    assert (again.decision, again.attempt) == (DeliveryDecision.RUN, 3)
    await again.succeed()


async def test_a_decorated_handler(subscribe: MakeSubscription) -> None:
    calls: list[Any] = []

    def describe(message: dict[str, Any]) -> Delivery:
        return Delivery(message["key"], message["body"])

    @subscribe("ledger").handler(describe)
    async def pay(message: dict[str, Any]) -> dict[str, int]:
        calls.append(message)
        return {"number": len(calls)}

    message = {"key": "key-1", "body": b"{}"}
    assert (await pay(message)).action is Action.ACKNOWLEDGE
    again = await pay(message)
    assert (again.action, again.result) == (Action.ACKNOWLEDGE, b'{"number":1}')
    assert len(calls) == 1
