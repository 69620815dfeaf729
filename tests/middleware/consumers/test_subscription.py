"""The hook for consumers: each command is executed once by each consumer, whatever is delivered again.

Rules of docs/contract.md: R8.15, R8.20, R8.21, R12.6.
"""

import logging

import pytest
from pydantic import ValidationError

from oncegate import Action, Begun, Delivery, DeliveryDecision, Recording, Subscription, SubscriptionSettings
from oncegate.cache.memory.store import MemoryCache
from oncegate.cache.record import State, StoredResponse
from oncegate.middleware.admission.observe import Watch
from testing.records import read
from tests.middleware.conftest import MakeSubscription
from tests.middleware.deliveries import PAY, PAYLOAD, Records, decided

# -- the consumer's own record ----------------------------------------------------------------------------------------


async def test_a_redelivered_command_that_succeeded_is_a_duplicate(subscribe: MakeSubscription) -> None:
    first = await subscribe("ledger").begin(PAY)
    assert (first.decision, first.action, first.attempt) == (DeliveryDecision.RUN, Action.RUN, 1)
    assert await first.execution.succeed(b'{"number": 1}') is Recording.RECORDED
    assert first.action is first.execution.action is Action.ACKNOWLEDGE
    again = await subscribe("ledger").begin(PAY)
    assert (again.decision, again.action, again.attempt) == (DeliveryDecision.DUPLICATE, Action.ACKNOWLEDGE, 1)
    assert again.result == b'{"number": 1}'
    assert again.record == first.record


async def test_a_command_in_flight_elsewhere_is_not_acknowledged(subscribe: MakeSubscription) -> None:
    first = await subscribe("ledger").begin(PAY)
    other = await subscribe("ledger").begin(PAY)
    assert (other.decision, other.action) == (DeliveryDecision.IN_FLIGHT, Action.REDELIVER)
    await first.execution.succeed()


async def test_each_consumer_executes_a_command_once(subscribe: MakeSubscription, records: Records) -> None:
    for consumer in ("ledger", "mail"):
        begun = await subscribe(consumer).begin(PAY)
        assert begun.run
        await begun.execution.succeed()
        assert await records.state(consumer) is State.SUCCEEDED


async def test_a_command_that_failed_is_tried_again_and_its_error_is_kept(
    subscribe: MakeSubscription, records: Records
) -> None:
    first = await subscribe("ledger").begin(PAY)
    assert await first.execution.fail(ValueError("no such account")) is Recording.RECORDED
    assert first.execution.action is Action.REDELIVER
    record = await records.execution("ledger")
    assert record
    assert record.response
    assert record.response.status == 500
    assert await records.kept("ledger") == (State.FAILED, 1, b'{"type":"ValueError","message":"no such account"}')
    second = await subscribe("ledger").begin(PAY)
    assert (second.decision, second.attempt) == (DeliveryDecision.RUN, 2)
    await second.execution.succeed()


async def test_an_error_never_overwrites_a_success(subscribe: MakeSubscription, records: Records) -> None:
    begun = await subscribe("ledger").begin(PAY)
    await begun.execution.succeed(b"1")
    await begun.execution.fail("the acknowledgement did not work")
    assert begun.execution.action is Action.ACKNOWLEDGE
    assert await records.state("ledger") is State.SUCCEEDED


async def test_a_later_outcome_changes_nothing_of_what_the_broker_is_told(subscribe: MakeSubscription) -> None:
    begun = await subscribe("ledger").begin(PAY)
    await begun.execution.fail("no such account", final=True)
    await begun.execution.succeed(b"1")
    assert (begun.execution.action, begun.execution.begun.reason) == (Action.DEAD_LETTER, "no such account")


async def test_failures_and_unknown_outcomes_are_kept_for_ttl_so_that_attempts_are_counted_over_any_pause(
    subscribe: MakeSubscription, records: Records
) -> None:
    for outcome in ("fail", "unknown"):
        begun = await subscribe("ledger", ttl=7200).begin(PAY)
        await (begun.execution.fail("no") if outcome == "fail" else begun.execution.unknown())
        assert 7_000_000 < (await read(records.cache, records.of("ledger"))).remaining_ms <= 7_200_000


async def test_a_released_attempt_does_not_count(subscribe: MakeSubscription, records: Records) -> None:
    first = await subscribe("ledger", max_attempts=1).begin(PAY)
    await first.execution.release()
    assert first.execution.action is Action.REDELIVER
    assert await records.state("ledger") is None
    second = await subscribe("ledger", max_attempts=1).begin(PAY)
    assert (second.decision, second.attempt) == (DeliveryDecision.RUN, 1)
    await second.execution.succeed()


async def test_an_unknown_outcome_is_tried_again_and_counts(subscribe: MakeSubscription, records: Records) -> None:
    first = await subscribe("ledger").begin(PAY)
    await first.execution.unknown("the connection broke")
    assert first.execution.action is Action.REDELIVER
    assert await records.state("ledger") is State.UNKNOWN
    second = await subscribe("ledger").begin(PAY)
    assert (second.decision, second.attempt) == (DeliveryDecision.RUN, 2)
    await second.execution.succeed()


async def test_a_result_is_kept_as_it_is_or_not_at_all(subscribe: MakeSubscription) -> None:
    ledger = subscribe("ledger", max_result=10)
    upstreams = StoredResponse(201, ((b"location", b"/payments/7"),), b"created", 1)
    await (await ledger.begin(Delivery("upstream's"))).execution.succeed(upstreams)
    assert (await ledger.begin(Delivery("upstream's"))).response == upstreams
    for result in (b"x" * 11, StoredResponse(201, (), b"x" * 11, 1)):
        too_large = Delivery(f"large {type(result)}")
        begun = await ledger.begin(too_large)
        assert await begun.execution.succeed(result)
        again = await ledger.begin(too_large)
        assert (again.decision, again.result) == (DeliveryDecision.DUPLICATE, None)


# -- the same key, another command ------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["in-flight", "succeeded", "failed", "unknown"])
async def test_another_payload_under_the_same_key_never_runs(subscribe: MakeSubscription, state: str) -> None:
    first = await subscribe("ledger").begin(PAY)
    if state == "succeeded":
        await first.execution.succeed()
    elif state == "failed":
        await first.execution.fail("no")
    elif state == "unknown":
        await first.execution.unknown()
    other = await subscribe("ledger").begin(Delivery("key-1", b'{"amount": 500}'))
    assert (other.decision, other.action) == (DeliveryDecision.MISMATCH, Action.DEAD_LETTER)
    if state == "in-flight":
        await first.execution.succeed()


async def test_callers_do_not_share_keys(subscribe: MakeSubscription) -> None:
    for caller in ("", "alice", "bob"):
        begun = await subscribe("ledger").begin(Delivery("key-1", PAYLOAD, caller=caller))
        assert begun.run
        await begun.execution.succeed()


# -- attempts run out -------------------------------------------------------------------------------------------------


async def use_up(subscription: Subscription, delivery: Delivery = PAY) -> Begun:
    """Fail until the delivery is not to be tried again."""
    while (begun := await subscription.begin(delivery)).run:
        await begun.execution.fail(ValueError(f"attempt {begun.attempt}"))
        if begun.execution.action is Action.DEAD_LETTER:
            break
    return begun


async def test_after_the_last_attempt_a_command_is_dead(subscribe: MakeSubscription, records: Records) -> None:
    ledger = subscribe("ledger", max_attempts=2)
    last = await use_up(ledger)
    assert last.attempt == 2
    again = await ledger.begin(PAY)
    assert (again.decision, again.action, again.attempt) == (DeliveryDecision.EXHAUSTED, Action.DEAD_LETTER, 2)
    dead = b'{"type":"ValueError","message":"attempt 2","dead":true}'
    assert again.response is not None
    assert again.response.body == dead
    assert await records.kept("ledger") == (State.FAILED, 2, dead)


async def test_attempts_that_die_with_their_process_count(subscribe: MakeSubscription, records: Records) -> None:
    for _ in range(3):
        await records.die("ledger")
    for _ in range(2):
        begun = await subscribe("ledger", max_attempts=3).begin(PAY)
        assert (begun.decision, begun.action, begun.attempt) == (DeliveryDecision.EXHAUSTED, Action.DEAD_LETTER, 3)
        state, attempts, body = await records.kept("ledger")
        assert (state, attempts, b'"dead":true' in (body or b"")) == (State.FAILED, 3, True)


async def test_a_lowered_limit_ends_what_is_over_it_with_its_last_error(
    subscribe: MakeSubscription, records: Records
) -> None:
    for _ in range(2):
        await (await subscribe("ledger", max_attempts=0).begin(PAY)).execution.fail(ValueError("no"))
    begun = await subscribe("ledger", max_attempts=1).begin(PAY)
    assert begun.decision is DeliveryDecision.EXHAUSTED
    assert await records.kept("ledger") == (State.FAILED, 2, b'{"type":"ValueError","message":"no","dead":true}')


async def test_without_a_limit_a_command_is_tried_for_ever(subscribe: MakeSubscription) -> None:
    for attempt in range(1, 9):
        begun = await subscribe("ledger", max_attempts=0).begin(PAY)
        assert (begun.run, begun.attempt) == (True, attempt)
        await begun.execution.fail("no")
        assert begun.execution.action is Action.REDELIVER


async def test_a_final_failure_is_dead_at_once(subscribe: MakeSubscription) -> None:
    begun = await subscribe("ledger").begin(PAY)
    await begun.execution.fail(ValueError("not a number"), final=True, status=422)
    assert begun.execution.action is Action.DEAD_LETTER
    again = await subscribe("ledger").begin(PAY)
    assert again.decision is DeliveryDecision.EXHAUSTED
    assert again.response is not None
    assert again.response.status == 422


async def test_a_command_that_an_operator_drove_again_has_all_its_attempts(subscribe: MakeSubscription) -> None:
    ledger = subscribe("ledger", max_attempts=2)
    dead = await use_up(ledger)
    driven = Delivery("key-1", PAYLOAD, attempts_before=dead.attempt)
    assert (await use_up(ledger, driven)).attempt == 4
    assert await decided(ledger, driven) is DeliveryDecision.EXHAUSTED
    assert await decided(ledger) is DeliveryDecision.EXHAUSTED, "the copy from before counts them all"
    begun = await ledger.begin(Delivery("key-1", PAYLOAD, attempts_before=4))
    assert begun.run
    await begun.execution.succeed()
    assert await decided(ledger) is DeliveryDecision.DUPLICATE


# -- bounds, events, what is refused at once --------------------------------------------------------------------------


async def test_more_than_max_in_flight_are_redelivered(subscribe: MakeSubscription) -> None:
    ledger = subscribe("ledger", max_in_flight=1)
    first = await ledger.begin(PAY)
    for delivery in (Delivery("key-2"), Delivery(None)):
        begun = await ledger.begin(delivery)
        assert (begun.decision, begun.action) == (DeliveryDecision.UNAVAILABLE, Action.REDELIVER)
    await first.execution.succeed()
    assert await decided(ledger) is DeliveryDecision.DUPLICATE
    assert await decided(ledger, Delivery("key-2")) is DeliveryDecision.RUN


async def test_a_watch_is_told_by_the_consumers_name(subscribe: MakeSubscription) -> None:
    events: list[object] = []

    class Watching(Watch):
        def attempt_began(self, route: str) -> None:
            events.append(("began", route))

        def attempt_settled(self, route: str, state: State | None, seconds: float) -> None:
            events.append((state, route))

        def attempt_ended(self, route: str) -> None:
            events.append(("ended", route))

    ledger = subscribe("ledger", watch=Watching())
    await (await ledger.begin(PAY)).execution.succeed()
    assert await ledger.drain(30) == 0
    assert events == [("began", "ledger"), (State.SUCCEEDED, "ledger"), ("ended", "ledger")]


async def test_neither_key_nor_payload_is_logged(subscribe: MakeSubscription, caplog: pytest.LogCaptureFixture) -> None:
    secret = Delivery("secret-key", b"secret-payload", caller="secret-caller")
    with caplog.at_level(logging.DEBUG):
        ledger = subscribe("ledger", max_attempts=1, max_result=1)
        first = await ledger.begin(secret)
        await first.execution.fail(ValueError("secret-error"))
        await first.execution.succeed(b"secret-result")
        await ledger.begin(secret)
        await (await subscribe("mail", max_result=1).begin(secret)).execution.succeed(b"secret-result")
    assert caplog.records
    assert "secret" not in caplog.text
    assert "secret" not in repr(secret)


@pytest.mark.parametrize("name", ["", "a:b", "a b", "x" * 65, "a\n"])
def test_a_consumers_name_is_plain(name: str) -> None:
    with pytest.raises(ValueError, match="consumer's name"):
        Subscription(name, cache=MemoryCache())
    with pytest.raises(ValueError, match="consumer's name"):
        Subscription("new", cache=MemoryCache(), aliases=[name])


def test_what_can_t_be_configured_is_refused() -> None:
    with pytest.raises(ValueError, match="aliases"):
        Subscription("new", cache=MemoryCache(), aliases=["new"])
    with pytest.raises(ValueError, match="namespace"):
        Subscription("new", cache=MemoryCache(), namespace="a:b")
    for wrong in ({"lease": 3, "heartbeat": 2}, {"max_attempts": -1}, {"lesae": 3}, {"on_cache_down": "ignore"}):
        with pytest.raises(ValidationError):
            SubscriptionSettings.model_validate(wrong)
