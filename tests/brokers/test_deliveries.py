"""The middleware under each real broker: what is run, skipped, delivered again and dead-lettered.

Rules of docs/contract.md: R12.6.
"""

import asyncio
import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from faststream.exceptions import NackMessage, RejectMessage
from faststream.middlewares import AckPolicy

from oncegate import Delivery, DeliveryDecision, Recording
from oncegate.cache.record import State
from oncegate.middleware.consumers.begun import Begun
from oncegate.middleware.outcome.errors import NotRetryable
from oncegate.middleware.rules.keys.key import execution_key, record_key
from testing.servers import RedisServer
from testing.waiting import until
from tests.brokers.benches import KEY, Bench
from tests.brokers.conftest import PAUSE, Consumers, recorded, settled
from tests.brokers.consumers import Effects


def command(key: str, **more: Any) -> dict[str, Any]:
    return {"key": key, **more}


async def ended(consumers: Consumers, bench: Bench, *dead: dict[str, Any]) -> None:
    """Stops the consumers once ``dead`` are the dead letters; nothing else may be left."""

    async def found() -> bool:
        return sorted(map(str, await bench.dead())) == sorted(map(str, dead))

    await until(found)
    await consumers.end()
    await settled(bench)
    assert await found()  # still: what is settled adds nothing


@pytest.mark.parametrize("policy", [AckPolicy.NACK_ON_ERROR, AckPolicy.REJECT_ON_ERROR])
async def test_a_message_that_is_published_again_is_skipped(
    bench: Bench, consumers: Consumers, effects: Effects, policy: AckPolicy
) -> None:
    """Under a new broker id, with the key written otherwise; a message behind it tells that it has been seen."""

    async def handle(body: dict[str, Any]) -> None:
        effects.add(body["key"])

    await consumers.start(handle, policy=policy)
    await bench.publish(command("one"))
    await until(lambda: effects.count() == {"one": 1})
    await bench.publish(command("one"), {KEY: "one"})
    await bench.publish(command("one"), {KEY.lower(): '"one"'})
    await bench.publish(command("two"))
    await until(lambda: effects.count().get("two"))
    await ended(consumers, bench)
    assert effects.count() == {"one": 1, "two": 1}


async def test_a_delivery_has_the_instant_at_which_its_message_was_sent(bench: Bench, consumers: Consumers) -> None:
    """By the clock of the broker; RabbitMQ's is in whole seconds."""
    found: list[datetime | None] = []

    async def handle(body: dict[str, Any]) -> None:
        pass

    await consumers.start(handle, on_begun=lambda begun: found.append(begun.execution.context.delivery.sent_at))
    before = datetime.now(UTC) - timedelta(seconds=1.1)
    await bench.publish(command("one"))
    await until(lambda: found)
    assert found[0] is not None
    assert before < found[0] < datetime.now(UTC) + timedelta(seconds=1)
    await ended(consumers, bench)


async def test_another_payload_under_the_same_key_is_dead_lettered(
    bench: Bench, consumers: Consumers, effects: Effects
) -> None:
    async def handle(body: dict[str, Any]) -> None:
        effects.add(f"{body['key']} {body['amount']}")

    await consumers.start(handle)
    await bench.publish(command("one", amount=5))
    await until(lambda: effects.count() == {"one 5": 1})
    await bench.publish(command("one", amount=500))
    await ended(consumers, bench, command("one", amount=500))
    assert effects.count() == {"one 5": 1}


async def test_a_message_without_a_key_or_with_a_bad_one(bench: Bench, consumers: Consumers, effects: Effects) -> None:
    async def handle(body: dict[str, Any]) -> None:
        effects.add(body["key"])

    await consumers.start(handle, on_missing_key="reject")
    await bench.publish(command("none"), {})
    await bench.publish(command("bad"), {KEY: "a,b"})
    await bench.publish(command("two"), {KEY: "a", KEY.lower(): "b"})
    await bench.publish(command("good"))
    await until(lambda: effects.count() == {"good": 1})
    await ended(consumers, bench, command("none"), command("bad"), command("two"))
    assert effects.count() == {"good": 1}


async def test_the_brokers_own_id_as_the_key(bench: Bench, consumers: Consumers, effects: Effects) -> None:
    """It stays the same in each delivery of a message, and is another one for another message."""
    attempts: list[int] = []

    async def handle(body: dict[str, Any]) -> None:
        effects.add(body["key"])
        if effects.count()[body["key"]] == 1:
            raise ValueError("the first delivery fails")

    await consumers.start(
        handle, on_begun=lambda begun: attempts.extend([begun.attempt] * begun.run), on_missing_key="message_id"
    )
    await bench.publish(command("one"), {})
    await until(lambda: effects.count() == {"one": 2})
    await bench.publish(command("one"), {})
    await until(lambda: effects.count() == {"one": 3})
    await ended(consumers, bench)
    assert attempts == [1, 2, 1]


async def test_a_failing_command_is_delivered_again_then_dead_and_holds_up_nobody(
    bench: Bench, consumers: Consumers, effects: Effects
) -> None:
    async def handle(body: dict[str, Any]) -> None:
        effects.add(body["key"])
        if body["key"] == "poison" or (body["key"] == "once" and effects.count()["once"] == 1):
            raise ValueError("no such account")

    await consumers.start(handle, max_attempts=3)
    await bench.publish(command("poison"))
    await bench.publish(command("once"))
    await bench.publish(command("good"))
    await until(lambda: effects.count().get("good"))
    await until(lambda: effects.count().get("once") == 2)
    await ended(consumers, bench, command("poison"))
    assert effects.count() == {"good": 1, "once": 2, "poison": 3}


async def test_a_handler_may_say_itself_what_is_to_happen(bench: Bench, consumers: Consumers, effects: Effects) -> None:
    async def handle(body: dict[str, Any]) -> None:
        effects.add(body["key"])
        if body["key"] == "reject":
            raise RejectMessage
        if body["key"] == "hopeless":
            raise NotRetryable("no such account")
        if body["key"] == "back" and effects.count()["back"] == 1:
            raise NackMessage

    await consumers.start(handle)
    for key in ("reject", "hopeless", "back"):
        await bench.publish(command(key))
    await until(lambda: effects.count().get("back") == 2)
    await ended(consumers, bench, command("reject"), command("hopeless"))
    assert effects.count() == {"back": 2, "hopeless": 1, "reject": 1}


async def test_two_consumers_that_get_one_command_at_once(bench: Bench, consumers: Consumers, effects: Effects) -> None:
    """Two copies: the second is in flight elsewhere, and comes again, until the first is done; then it is a duplicate."""
    entered, finish = asyncio.Event(), asyncio.Event()
    decisions: list[DeliveryDecision] = []
    times: list[float] = []

    def on_begun(begun: Begun) -> None:
        decisions.append(begun.decision)
        times.append(time.monotonic())

    async def handle(body: dict[str, Any]) -> None:
        effects.add(body["key"])
        entered.set()
        await finish.wait()

    for _ in range(2):
        await consumers.start(handle, on_begun=on_begun)
    await bench.publish(command("one"))
    await entered.wait()
    await bench.publish(command("one"))
    await until(lambda: decisions.count(DeliveryDecision.IN_FLIGHT) >= 6)
    assert times[-1] - times[0] >= PAUSE * 5 / 2, "a hot loop (two copies may be under way)"
    finish.set()
    await until(lambda: DeliveryDecision.DUPLICATE in decisions)
    if bench.counts_held:
        await settled(bench)
    await ended(consumers, bench)
    assert effects.count() == {"one": 1}
    assert decisions.count(DeliveryDecision.RUN) == 1


async def test_what_a_handler_takes_too_long_for_is_tried_again(
    bench: Bench, consumers: Consumers, effects: Effects
) -> None:
    found: list[State] = []

    async def handle(body: dict[str, Any]) -> None:
        effects.add(body["key"])
        if effects.count()["slow"] == 1:
            await asyncio.Event().wait()
        record = await one.cache.get(execution_key(record_key(bench.name, "slow", None), "billing"))
        assert record
        found.append(record.record.found)

    one = await consumers.start(handle, attempt_timeout=0.2)
    await bench.publish(command("slow"))
    await until(lambda: found)
    await ended(consumers, bench)
    assert effects.count()["slow"] >= 2  # more where the machine stood still for as long as the others had
    assert set(found) == {State.UNKNOWN}, "no failure: the effect may have happened"


async def test_a_plain_function_is_not_cut_off_in_its_thread(
    bench: Bench, consumers: Consumers, effects: Effects
) -> None:
    """It can't be ended, and would run beside its second attempt."""

    lease = 4

    def handle(body: dict[str, Any]) -> None:
        effects.add(body["key"])
        time.sleep(lease + 1)  # its lease is renewed meanwhile

    await consumers.start(handle, attempt_timeout=0.2, lease=lease)
    await bench.publish(command("slow"))
    await until(lambda: effects.count() == {"slow": 1})
    await ended(consumers, bench)
    assert effects.count() == {"slow": 1}


async def test_a_delivery_that_is_described_by_the_user(bench: Bench, consumers: Consumers, effects: Effects) -> None:
    """Here with the caller, who has keys of his own; what can't be described is kept until it can be."""
    failures: list[str] = []

    async def handle(body: dict[str, Any]) -> None:
        effects.add(f"{body['caller']} {body['key']}")

    def describe(message: Any) -> Delivery:
        if message.headers["caller"] == "ann" and len(failures) < 2:
            failures.append(message.headers["caller"])
            raise LookupError("ann is not known yet")
        return Delivery(message.headers["id"], message.body, caller=message.headers["caller"])

    await consumers.start(handle, describe=describe)
    for caller in ("ann", "bob", "bob"):
        await bench.publish(command("one", caller=caller), {"id": "one", "caller": caller})
    await until(lambda: len(effects.count()) == 2)
    await ended(consumers, bench)
    assert effects.count() == {"ann one": 1, "bob one": 1}


async def test_dead_letters_that_the_user_puts_aside(bench: Bench, consumers: Consumers, effects: Effects) -> None:
    """What can't be put aside is not rejected: it comes again."""
    aside: list[dict[str, Any]] = []

    async def handle(body: dict[str, Any]) -> None:
        raise NotRetryable("no such account")

    async def put_aside(message: Any, begun: Begun) -> None:
        effects.add(begun.decision)
        if effects.count() != {"run": 1}:
            aside.append(json.loads(message.body))
        else:
            raise ConnectionError("away")

    await consumers.start(handle, dead_letter=put_aside)
    await bench.publish(command("one"))
    await until(lambda: aside)
    rejects = bench.kind != "redis"  # there the user's place is the only one
    await ended(consumers, bench, *[command("one")] * rejects)
    assert aside[0] == command("one")
    assert effects.count()["run"] == 1
    assert set(effects.count()) == {"exhausted", "run"}


@pytest.mark.parametrize("bench", ["nats", "redis"], indirect=True)  # RabbitMQ forgets what was acknowledged
async def test_a_stream_that_is_read_again_from_its_start(bench: Bench, consumers: Consumers, effects: Effects) -> None:
    async def handle(body: dict[str, Any]) -> None:
        effects.add(body["key"])

    keys = ["one", "two", "three"]
    decisions: list[DeliveryDecision] = []
    await consumers.start(handle)
    for key in keys:
        await bench.publish(command(key))
    await until(lambda: len(effects.count()) == 3)
    await ended(consumers, bench)
    await bench.rewind()
    await consumers.start(handle, on_begun=lambda begun: decisions.append(begun.decision))
    await until(lambda: len(decisions) >= 3)
    await ended(consumers, bench)
    assert set(decisions) == {DeliveryDecision.DUPLICATE}
    assert effects.count() == {"one": 1, "three": 1, "two": 1}


async def test_without_the_cache_nothing_runs_and_nothing_counts(
    bench: Bench, consumers: Consumers, effects: Effects
) -> None:
    begun: list[Begun] = []

    async def handle(body: dict[str, Any]) -> None:
        effects.add(body["key"])

    with RedisServer(persist=True) as records:
        await consumers.start(handle, on_begun=begun.append, cache=records.url, max_attempts=1)
        records.stop()
        await bench.publish(command("one"))
        await until(lambda: len(begun) >= 3)
        assert {each.decision for each in begun} == {DeliveryDecision.UNAVAILABLE}
        assert effects.count() == {}
        records.start()
        await until(lambda: effects.count() == {"one": 1})
        await ended(consumers, bench)
        assert begun[-1].attempt == 1


async def test_a_success_that_can_not_be_recorded_is_not_acknowledged(
    bench: Bench, consumers: Consumers, effects: Effects
) -> None:
    """It is recorded when the cache is back, and the next delivery finds it."""
    begun: list[Begun] = []
    recordings: list[Recording] = []

    def observe(one: Begun) -> None:
        begun.append(one)
        if one.run:
            succeed = one.execution.succeed

            async def observed_succeed(result: Any = None) -> Recording:
                recordings.append(await succeed(result))
                return recordings[-1]

            one.execution.succeed = observed_succeed  # type: ignore[method-assign]  # the test listens in on one object

    with RedisServer(persist=True) as records:

        async def handle(body: dict[str, Any]) -> None:
            effects.add(body["key"])
            records.stop()

        await consumers.start(handle, on_begun=observe, cache=records.url, lease=30, record_timeout=0.2)
        await bench.publish(command("one"))
        # Some brokers deliver it again while the first delivery still waits to be recorded: that one is to have given up,
        # or it would be recorded, acknowledged, and never delivered again.
        await until(lambda: len(begun) >= 2 and recordings)
        assert recordings == [Recording.PENDING]
        records.start()
        await until(lambda: begun[-1].decision is DeliveryDecision.DUPLICATE)
        await ended(consumers, bench)
    assert effects.count() == {"one": 1}


class Abort(BaseException):
    """As time-out libraries raise it into a handler."""


@pytest.mark.parametrize("raised", [Abort, GeneratorExit])
async def test_a_handler_that_raises_what_is_no_exception_has_failed_and_its_consumer_goes_on(
    bench: Bench, consumers: Consumers, effects: Effects, raised: type[BaseException]
) -> None:
    async def handle(body: dict[str, Any]) -> None:
        effects.add(body["key"])
        if body["key"] == "aborts":
            raise raised("it took too long")

    one = await consumers.start(handle, max_attempts=2)
    await bench.publish(command("aborts"))
    await until(lambda: effects.count().get("aborts") == 2)
    await bench.publish(command("next"))
    await until(lambda: recorded(one, "next"))
    found = await one.cache.get(execution_key(record_key(one.namespace, "aborts", None), one.consumer))
    await ended(consumers, bench, command("aborts"))
    assert effects.count() == {"aborts": 2, "next": 1}
    assert found
    assert found.record.response
    assert raised.__name__.encode() in (found.record.response.body or b"")
