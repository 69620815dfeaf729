"""What the hook finds beside its own record: what the gateway did under the key, and the consumer's former names.

Rules of docs/contract.md: R8.14, R8.16.
"""

from dataclasses import replace
from typing import Any

import pytest

from oncegate import Action, CommandProcessor, Delivery, DeliveryDecision, DuplicateCommandError
from oncegate.cache.record import State
from oncegate.middleware.rules.keys.key import record_id, record_key
from tests.middleware.conftest import MakeSubscription
from tests.middleware.deliveries import GATEWAYS, PAY, PAYLOAD, Records, decided

ALL = (State.SUCCEEDED, State.FAILED, State.UNKNOWN, None)


# -- former names -----------------------------------------------------------------------------------------------------


async def test_a_success_under_a_former_name_is_a_duplicate(subscribe: MakeSubscription) -> None:
    await (await subscribe("old").begin(PAY)).execution.succeed(b"7")
    begun = await subscribe("new", aliases=("older", "old")).begin(PAY)
    assert (begun.decision, begun.result) == (DeliveryDecision.DUPLICATE, b"7")
    assert await decided(subscribe("new")) is DeliveryDecision.RUN, "which it is by the alias only"


async def test_an_attempt_under_a_former_name_is_in_flight(subscribe: MakeSubscription) -> None:
    old = await subscribe("old").begin(PAY)
    assert await decided(subscribe("new", aliases=("old",))) is DeliveryDecision.IN_FLIGHT
    await old.execution.succeed()


async def test_failures_under_former_names_count(subscribe: MakeSubscription, records: Records) -> None:
    await (await subscribe("old").begin(PAY)).execution.fail("no")
    await records.die("older")
    new = subscribe("new", aliases=("old", "older"), max_attempts=3)
    begun = await new.begin(PAY)
    assert (begun.run, begun.attempt) == (True, 3)
    await begun.execution.fail("no")
    assert begun.execution.action is Action.DEAD_LETTER
    assert await decided(new) is DeliveryDecision.EXHAUSTED


@pytest.mark.parametrize("final", [False, True])
async def test_a_command_that_died_under_a_former_name_is_dead(
    subscribe: MakeSubscription, records: Records, final: bool
) -> None:
    last = await (old := subscribe("old", max_attempts=1 if not final else 5)).begin(PAY)
    await last.execution.fail("no", final=final)
    new = subscribe("new", aliases=("old",), max_attempts=1 if not final else 5)
    dead = await new.begin(PAY)
    assert dead.decision is DeliveryDecision.EXHAUSTED
    assert await records.state("new") is State.FAILED, "so that its status tells"
    driven = Delivery("key-1", PAYLOAD, attempts_before=dead.attempt)
    assert await decided(new, driven) is DeliveryDecision.RUN
    assert await decided(old) is DeliveryDecision.EXHAUSTED


async def test_another_payload_under_a_former_name_is_a_mismatch(subscribe: MakeSubscription) -> None:
    await (await subscribe("old").begin(PAY)).execution.fail("no")
    new = subscribe("new", aliases=("old",))
    assert await decided(new, Delivery("key-1", b"other")) is DeliveryDecision.MISMATCH


# -- what the gateway did under the key -------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ALL)
async def test_what_was_only_accepted_is_processed(
    subscribe: MakeSubscription, records: Records, state: State | None
) -> None:
    await records.submit(state, mark=True)
    assert await decided(subscribe("ledger"), Delivery("key-1", PAYLOAD, fingerprint=GATEWAYS)) is DeliveryDecision.RUN


@pytest.mark.parametrize(
    ("state", "decision"),
    [
        (State.SUCCEEDED, DeliveryDecision.DUPLICATE),
        (State.FAILED, DeliveryDecision.RUN),
        (State.UNKNOWN, DeliveryDecision.RUN),
        (None, DeliveryDecision.IN_FLIGHT),
    ],
)
async def test_what_the_gateway_executed_itself_is_not_processed_again(
    subscribe: MakeSubscription, records: Records, state: State | None, decision: DeliveryDecision
) -> None:
    await records.submit(state, mark=False)
    brought: list[dict[str, Any]] = [{}, {"record": record_id(records.submission)}]
    for brings in brought:
        delivery = replace(PAY, fingerprint=GATEWAYS, **brings)
        assert await decided(subscribe("ledger"), delivery) is decision
        assert await records.state("ledger") is None


@pytest.mark.parametrize("state", ALL)
async def test_a_message_under_the_key_of_a_request_is_a_command_of_its_own(
    subscribe: MakeSubscription, records: Records, state: State | None
) -> None:
    """A service behind the gateway publishes it while it answers the request. Its record must not swallow the message."""
    await records.submit(state, mark=False)
    ledger = subscribe("ledger")
    begun = await ledger.begin(PAY)
    assert begun.run
    await begun.execution.succeed()
    assert await decided(ledger) is DeliveryDecision.DUPLICATE


async def test_a_duplicate_of_what_the_gateway_executed_has_its_result(
    subscribe: MakeSubscription, records: Records
) -> None:
    await records.submit(State.SUCCEEDED, mark=False)
    copy = Delivery("key-1", PAYLOAD, record=record_id(records.submission), fingerprint=GATEWAYS)
    assert (await subscribe("ledger").begin(copy)).result == b"the gateway's"


async def test_a_submission_whose_gateway_died_is_processed(subscribe: MakeSubscription, records: Records) -> None:
    assert (await records.claim(records.submission, GATEWAYS, lease_ms=1, submission=True)).won
    delivery = Delivery("key-1", PAYLOAD, fingerprint=GATEWAYS)
    assert await decided(subscribe("ledger"), delivery) is DeliveryDecision.RUN


@pytest.mark.parametrize("state", ALL)
@pytest.mark.parametrize("brings", [{}, {"fingerprint": b"f" * 16}])
async def test_what_a_record_says_of_another_command_says_nothing_of_this_one(
    subscribe: MakeSubscription, records: Records, state: State | None, brings: dict[str, Any]
) -> None:
    """Without the gateway's fingerprint nobody can know that its record is of this very command."""
    await records.submit(state, mark=False)
    ledger = subscribe("ledger")
    for delivery in (replace(PAY, **brings), replace(PAY, record=record_id(records.submission), **brings)):
        assert await decided(ledger, delivery) is DeliveryDecision.RUN


@pytest.mark.parametrize("of_its_own", [None, b"f" * 16])
async def test_a_message_under_the_key_of_a_processed_command_is_executed_whatever_its_delivery_brings(
    subscribe: MakeSubscription, namespace: str, records: Records, of_its_own: bytes | None
) -> None:
    """`CommandProcessor.process` publishes it, and knows the record's id from its errors."""
    processor = CommandProcessor[int, Any](
        lambda command: command, name="pay", cache=records.cache, namespace=namespace
    )
    await processor.process(5, idempotency_key="key-1")
    with pytest.raises(DuplicateCommandError) as refusal:
        await processor.process(5, idempotency_key="key-1", raise_on_duplicate=True)
    for record in ("", refusal.value.record):
        message = Delivery("key-1", PAYLOAD, record=record, fingerprint=of_its_own)
        ledger = subscribe(f"ledger{len(record)}")
        begun = await ledger.begin(message)
        assert begun.run
        await begun.execution.succeed()
        assert await decided(ledger, message) is DeliveryDecision.DUPLICATE


async def test_a_delivery_from_the_gateway_is_known_by_its_record(
    subscribe: MakeSubscription, namespace: str, records: Records
) -> None:
    record = record_key(namespace, "key-1", [b"authorization", b"1", b"Bearer x"]).partition(":")[2]
    delivery = Delivery("key-1", PAYLOAD, record=record, fingerprint=GATEWAYS)
    begun = await subscribe("ledger").begin(delivery)
    assert (begun.run, begun.record) == (True, record)
    await begun.execution.succeed()
    assert await decided(subscribe("ledger"), delivery) is DeliveryDecision.DUPLICATE
    assert await records.state("ledger") is None, "that would be another caller's"
