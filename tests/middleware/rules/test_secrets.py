"""What a secret does to digests, and two of them while one replaces the other: nothing is executed again.

Rules of docs/contract.md: R6.21, R6.22.
"""

import asyncio
import json
from collections.abc import Awaitable, Iterator
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import pytest

from oncegate import Action, CommandProcessor, Delivery, IdempotencyMiddleware, Subscription
from oncegate.cache.errors import CacheUnavailable
from oncegate.cache.memory.store import MemoryCache
from oncegate.cache.record import Claim, State
from oncegate.cache.store import Cache
from oncegate.middleware.admission.admission import Admissions, Verdict
from oncegate.middleware.admission.attempt import Attempt
from oncegate.middleware.admission.gate import GateDecision
from oncegate.middleware.admission.request import Address, AdmissionRequest, Rotation
from oncegate.middleware.consumers.addresses import delivery_fingerprint
from oncegate.middleware.rules.keys.digests import UNKEYED, given_digests
from oncegate.middleware.rules.keys.key import fingerprint, forgiving, record_id, record_key
from oncegate.middleware.rules.policy import compile_policy
from oncegate.middleware.rules.settings import IdempotencySettings
from testing.asgi_client import Client
from tests.middleware.deliveries import PAYLOAD
from tests.middleware.door import Answering

OLD, NEW = "an old secret of 32 bytes or more", "a new secret of 32 bytes or more"
CALLER = [b"authorization", b"1", b"Bearer t"]
AS_FIRST = ([OLD, NEW], [NEW, OLD])
"""The two configurations that run side by side while the secrets change places."""


def digested(secret: Any) -> set[str]:
    """All that is made of one request."""
    digests = given_digests(secret)
    whole = fingerprint("POST", b"/pay", b"", b"{}", digests=digests)
    parts = record_key("n", "k", CALLER, digests).split(":")[1:]
    return {*parts, whole.hex(), forgiving("POST", b"/pay", whole, digests)[:10].hex()}


def test_without_the_secret_no_digest_can_be_made() -> None:
    made = [digested(secret) for secret in (None, OLD, NEW, OLD.encode() + b"!")]
    for one, other in combinations(made, 2):
        assert one.isdisjoint(other)
    assert digested(OLD) == digested(OLD.encode())


def test_digests_without_a_secret_stay_as_records_have_them() -> None:
    assert given_digests(None) is UNKEYED
    assert record_key("n", "k", None) == "n:HkZd2jGo.bKl.cKcdaJ3:t9uHGWxINAXkD4QB.h_J"


@pytest.mark.parametrize("secret", ["", "short", b"x" * 31, [OLD, OLD], [], [OLD, NEW, "x" * 32], [OLD, ""]])
def test_a_secret_that_is_none_is_refused_and_not_quoted(secret: Any) -> None:
    with pytest.raises(ValueError, match="secret") as refusal:
        IdempotencyMiddleware(Answering(), cache=MemoryCache(), secret=secret)
    assert OLD not in str(refusal.value)


def test_a_secret_is_a_text() -> None:
    for wrong in (5, [5]):
        with pytest.raises(TypeError, match="secret"):
            given_digests(wrong)


class Turns:
    """A cache whose calls wait for their turn: those of two admissions run in each order that there is."""

    def __init__(self, cache: Cache, mine: int) -> None:
        self._cache = cache
        self._mine = mine
        self.order: Iterator[int] = iter(())
        self.next: list[int] = []

    def __getattr__(self, name: str) -> Any:
        if name not in ("claim", "get", "release"):
            raise AttributeError(name)

        async def call(*arguments: Any, **options: Any) -> Any:
            while self.next and self.next[0] != self._mine:  # noqa: ASYNC110 - each step of the loop may change it
                await asyncio.sleep(0)
            try:
                return await getattr(self._cache, name)(*arguments, **options)
            finally:
                if self.next:
                    self.next.pop(0)

        return call


def admission_request(secret: Any, policy: Any, body: bytes = b"{}") -> AdmissionRequest:
    """A request as a gateway with these secrets makes it."""

    def address(digests: Any) -> Address:
        whole = fingerprint("POST", b"/", b"", body, digests=digests)
        return Address(record_key("n", "k", None, digests), whole, whole)

    digests = given_digests(secret)
    first = address(digests)
    rotation = None if digests.former is None else Rotation(first, address(digests.former))
    return AdmissionRequest(first, policy, rotation=rotation)


POLICY = compile_policy(IdempotencySettings(on_error="retry"))


async def both(order: tuple[int, ...], before: State | None) -> list[Attempt | Verdict]:
    """What two gateways, each with another secret first, decide about one key at once; their calls in this ``order``."""
    cache, turns = MemoryCache(), list(order)
    if before is not None:
        attempt = await Admissions(cache, max_in_flight=9).admit(admission_request(OLD, POLICY))
        assert isinstance(attempt, Attempt)
        await cache.complete(attempt.key, attempt.claim.outcome(before, 1, None, 1, ""), ttl_ms=60_000)
    admissions = []
    for mine, secrets in enumerate(AS_FIRST):
        own: Any = Turns(cache, mine)
        own.next = turns
        admissions.append(Admissions(own, max_in_flight=9).admit(admission_request(secrets, POLICY)))

    async def last(mine: int, admission: Awaitable[Attempt | Verdict]) -> Attempt | Verdict:
        decided = await admission
        turns[:] = [each for each in turns if each != mine]  # its other turns are nobody's
        return decided

    async with asyncio.timeout(30):
        return await asyncio.gather(*[last(*each) for each in enumerate(admissions)])


@pytest.mark.parametrize("before", [None, State.FAILED, State.SUCCEEDED], ids=str)
async def test_of_two_gateways_with_the_secrets_in_either_order_one_at_most_executes(before: State | None) -> None:
    runs = []
    for first in combinations(range(8), 4):
        order = tuple(0 if turn in first else 1 for turn in range(8))
        decided = await both(order, before)
        ran = sum(isinstance(each, Attempt) for each in decided)
        assert ran <= (before is not State.SUCCEEDED), order
        runs.append(ran)
        for each in decided:
            if isinstance(each, Verdict):
                assert each.decision is (
                    GateDecision.DUPLICATE if before is State.SUCCEEDED else GateDecision.IN_FLIGHT
                )
    if before is State.SUCCEEDED:
        assert not any(runs)
    else:  # nor do they keep each other from it, but where both have claimed before either looks
        assert sum(runs) > len(runs) / 2


@pytest.mark.parametrize(
    "steps",
    [[[OLD], [OLD, NEW], [NEW, OLD], [NEW]], [[None], [None, NEW], [NEW, None], [NEW]]],
    ids=["replaced", "introduced"],
)
async def test_a_retry_meets_its_record_from_one_step_of_the_rotation_to_the_next(steps: list[Any]) -> None:
    app, cache = Answering(), MemoryCache()
    gateways = [IdempotencyMiddleware(app, cache=cache, secret=secrets) for secrets in steps]

    async def pay(gateway: IdempotencyMiddleware, key: str, body: bytes = b"1") -> Client:
        return await Client("POST", b"/pay", [(b"idempotency-key", key.encode())], pieces=(body,)).call(gateway)

    for number, (earlier, later) in enumerate(pairwise(gateways)):
        for one, other in ((earlier, later), (later, earlier)):
            key = f"k-{number}-{one is earlier}"
            first, retry = await pay(one, key), await pay(other, key)
            assert (first.status, retry.status, retry.body) == (201, 201, first.body)
            assert retry.values(b"idempotent-replayed") == [b"true"]
            reused = await pay(other, key, b"2")
            assert reused.status == 422
            own = [json.loads(each.body)["record"] for each in (reused, await pay(one, key, b"2"))]
            assert own[0] == own[1]
    assert app.calls == 2 * (len(steps) - 1)


async def test_a_secret_that_is_replaced_at_once_has_a_retry_executed_again() -> None:
    """Why there are two of them for a while: this is what the rotation's tests would show, could they not fail."""
    app, cache = Answering(), MemoryCache()
    for secret in (OLD, NEW):
        gateway = IdempotencyMiddleware(app, cache=cache, secret=secret)
        await Client("POST", b"/pay", [(b"idempotency-key", b"k")]).call(gateway)
    assert app.calls == 2


class Lost(MemoryCache):
    """A cache that answers no more than ``left`` times that a record is not there."""

    left = 1

    async def get(self, key: str) -> Claim | None:
        if not self.left:
            raise CacheUnavailable("away")
        self.left -= 1
        return await super().get(key)


async def test_a_claim_is_given_back_where_the_other_address_can_t_be_read() -> None:
    app, cache = Answering(), Lost()
    gateway = IdempotencyMiddleware(app, cache=cache, secret=[NEW, OLD])
    refused = await Client("POST", b"/pay", [(b"idempotency-key", b"k")]).call(gateway)
    assert (refused.status, app.calls) == (503, 0)
    await gateway.drain(30)
    cache.left = 9
    assert (await Client("POST", b"/pay", [(b"idempotency-key", b"k")]).call(gateway)).status == 201


async def test_with_every_slot_taken_a_record_by_the_other_secret_is_replayed_all_the_same() -> None:
    app, cache = Answering(), MemoryCache()
    before = IdempotencyMiddleware(app, cache=cache, secret=OLD)
    await Client("POST", b"/pay", [(b"idempotency-key", b"k")]).call(before)
    gateway = IdempotencyMiddleware(app, cache=cache, secret=[NEW, OLD], max_in_flight=1)
    gateway.admissions.in_flight.slots.taken += 1
    replayed = await Client("POST", b"/pay", [(b"idempotency-key", b"k")]).call(gateway)
    assert replayed.values(b"idempotent-replayed") == [b"true"]
    gateway.admissions.in_flight.slots.taken -= 1


async def test_commands_of_a_processor_and_messages_are_digested_and_found_alike() -> None:
    cache, runs = MemoryCache(), list[int]()
    for secrets in (OLD, *AS_FIRST, NEW):
        key = "of-one-secret" if isinstance(secrets, str) else "k"
        processor = CommandProcessor[int, None](runs.append, name="p", cache=cache, secret=secrets)
        await processor.process(1, idempotency_key=key)
        subscription = Subscription("billing", cache=cache, secret=secrets)
        async for attempt in subscription.once(Delivery(key, PAYLOAD)):
            async with attempt:
                runs.append(2)
    # By both secrets: twice by one alone, which don't know of each other, and once where both are in use.
    assert sorted(runs) == [1, 1, 1, 2, 2, 2]


async def test_a_message_is_executed_once_by_consumers_with_the_secrets_in_either_order() -> None:
    cache, runs = MemoryCache(), 0

    async def deliver(subscription: Subscription, delivery: Delivery) -> None:
        nonlocal runs
        async with asyncio.timeout(30):
            while True:
                once = subscription.once(delivery)
                async for attempt in once:
                    async with attempt:
                        runs += 1
                        await asyncio.sleep(0)
                if once.action is Action.ACKNOWLEDGE:
                    return
                await asyncio.sleep(0.001)

    consumers = [Subscription("billing", cache=cache, secret=secrets) for secrets in AS_FIRST]
    await asyncio.gather(
        *[deliver(each, Delivery(f"k-{number}", PAYLOAD)) for number in range(20) for each in consumers]
    )
    assert runs == 20


@pytest.mark.parametrize("former_name", [False, True])
async def test_a_message_with_a_gateway_s_id_finds_its_record_by_the_payload_under_either_secret(
    former_name: bool,
) -> None:
    cache, aliases = MemoryCache(), ["billing"] if former_name else []
    delivery = Delivery(None, PAYLOAD, record=record_id(record_key("n", "k", None)))
    first = await Subscription("billing", cache=cache, secret=OLD).execute(delivery, lambda: {"id": 1})
    assert first.decision == "run"
    for secrets in AS_FIRST:
        name = "invoices" if former_name else "billing"
        subscription = Subscription(name, aliases=aliases, cache=cache, secret=secrets)
        again = await subscription.begin(delivery)
        assert (again.decision, again.result) == ("duplicate", b'{"id":1}')
        other = await subscription.begin(replace(delivery, payload=b"another"))
        assert other.decision == "key-reused"
    too_soon = await Subscription(name, aliases=aliases, cache=cache, secret=NEW).begin(delivery)
    assert too_soon.decision == "key-reused", "not executed again"


async def test_attempts_at_a_message_with_a_gateway_s_id_go_on_under_the_new_secret() -> None:
    cache, delivery = MemoryCache(), Delivery(None, PAYLOAD, record=record_id(record_key("n", "k", None)))
    for number, secrets in enumerate((OLD, *AS_FIRST), 1):
        begun = await Subscription("billing", cache=cache, secret=secrets).begin(delivery)
        assert (begun.decision, begun.attempt, begun.mismatch) == ("run", number, False)
        old = delivery_fingerprint(delivery, given_digests(OLD))
        context = begun.execution.context
        assert context.fingerprint == old
        if secrets is not OLD:
            assert context.other == (delivery.record, delivery_fingerprint(delivery, given_digests(NEW)))
        await begun.execution.fail("not yet")
