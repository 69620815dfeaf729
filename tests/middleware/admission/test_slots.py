"""What isn't known yet isn't counted as the worst: a claim that turns out to be a replay takes nobody's slot or new key.

Rules of docs/contract.md: R4.25, R4.34.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable

import pytest

from oncegate.cache.redis.store import RedisCache
from oncegate.middleware.admission.limits.callers import CallerLimits, CallerSlots
from oncegate.middleware.admission.limits.slots import Slot, Slots
from oncegate.middleware.rules.errors import Overloaded, TooManyKeys
from testing.servers import RedisServer
from testing.waiting import until
from tests.middleware.door import PATIENCE, Answering, Call, Door

ALICE, BOB = [("authorization", "Bearer alice")], [("authorization", "Bearer bob")]
LIMITS = [{"max_in_flight_per_caller": 2}, {"new_keys_per_caller": "2/h"}, {"max_in_flight": 2}]
NAMES = ["attempts of a caller", "new keys of a caller", "attempts of the process"]


@pytest.fixture
async def cache(server: RedisServer) -> AsyncIterator[RedisCache]:
    cache = RedisCache.from_url(server.url, timeout=PATIENCE)
    yield cache
    await cache.close()


async def together(server: RedisServer, there: Door, begin: Callable[[], list[Call]]) -> list[Call]:
    """The requests' answers, where none of their claims was answered before all were made."""
    server.pause()
    try:
        calls = begin()
        for _ in range(20):
            await asyncio.sleep(0)
        assert there.slots
    finally:
        server.resume()
    return [await call.answered() for call in calls]


@pytest.mark.parametrize("limits", LIMITS, ids=NAMES)
async def test_a_new_key_among_many_replays_is_executed(
    server: RedisServer, cache: RedisCache, limits: dict[str, object]
) -> None:
    there = Door(app := Answering(201), cache, "n", **limits)
    await there.send(key="done", headers=ALICE)

    def begin() -> list[Call]:
        return [there.begin(key="done" if n != 30 else "new", headers=ALICE) for n in range(61)]

    answers = await together(server, there, begin)
    assert {call.status for call in answers} == {201}
    assert [call.replayed for call in answers].count(False) == 1
    assert app.calls == 2


async def test_a_retry_of_an_error_is_no_new_key(server: RedisServer, cache: RedisCache) -> None:
    there = Door(app := Answering(500, 201, 201), cache, "n", new_keys_per_caller="2/h")
    assert (await there.send(key="failed", headers=ALICE)).status == 500
    assert (await there.send(key="new", headers=ALICE)).status == 201
    assert (await there.send(key="newer", headers=ALICE)).status == 429
    assert (await there.send(key="failed", headers=ALICE)).status == 201
    assert app.calls == 3


@pytest.mark.parametrize(
    ("limits", "refusal"),
    list(zip(LIMITS, ["too-many-keys", "too-many-keys", "overloaded"], strict=True)),
    ids=NAMES,
)
async def test_of_many_new_keys_as_many_are_executed_as_are_allowed(
    server: RedisServer, cache: RedisCache, limits: dict[str, object], refusal: str
) -> None:
    """A caller's own limit is never answered with the gateway's word, and who waits is not refused before it is known."""
    there = Door(app := Answering(201, held=True), cache, "n", **limits)
    server.pause()
    calls = [there.begin(key=f"new-{number}", headers=ALICE) for number in range(60)]
    for _ in range(20):
        await asyncio.sleep(0)
    server.resume()
    await app.arrivals(2)
    await until(lambda: sum(call.done for call in calls) == 58)
    app.release()
    answers = [await call.answered() for call in calls]
    assert Counter(call.status if call.status == 201 else call.code for call in answers) == {201: 2, refusal: 58}
    assert app.calls == 2
    if "new_keys_per_caller" not in limits:
        assert (await there.send(key="next", headers=ALICE)).status == 201


async def test_another_caller_does_not_wait_for_one_who_sends_much(server: RedisServer, cache: RedisCache) -> None:
    there = Door(Answering(201), cache, "n", max_in_flight_per_caller=1)
    await there.send(key="done", headers=ALICE)

    def begin() -> list[Call]:
        many = [there.begin(key=f"new-{number}", headers=ALICE) for number in range(20)]
        return [*many, there.begin(key="b", headers=BOB)]

    answers = await together(server, there, begin)
    assert answers[-1].status == 201


async def test_a_request_that_leaves_while_it_waits_leaves_nothing(server: RedisServer, cache: RedisCache) -> None:
    there = Door(app := Answering(201), cache, "n", max_in_flight=2)
    server.pause()
    calls = [there.begin(key=f"new-{number}", headers=ALICE) for number in range(40)]
    for _ in range(20):
        await asyncio.sleep(0)
    for call in calls[::2]:
        call.task.cancel()
    server.resume()
    for call in calls[1::2]:
        await call.answered()
    slots = there.middleware.admissions.in_flight.slots
    await until(lambda: slots.taken == slots.claims == 0)
    assert slots.lines == {}
    assert app.calls <= 20
    assert (await there.send(key="next", headers=ALICE)).status == 201


def key(caller: str) -> str:
    return f"ns:{0:020d}:{caller:.<20}"


def claimed(slots: Slots, caller: str) -> Slot:
    slot = slots.enter(key(caller))
    assert slot is not None
    return slot


async def test_who_waits_is_served_in_order_and_before_who_comes_later() -> None:
    slots = Slots(1)
    first = claimed(slots, "a")
    order: list[int] = []

    async def one(number: int) -> None:
        slot = await slots.wait(key("a"), PATIENCE, is_new=True)
        order.append(number)
        assert not slots.enter(key("a"))
        slot.lost()

    waiting = [asyncio.create_task(one(number)) for number in range(5)]
    await asyncio.sleep(0)
    first.lost()
    assert not slots.enter(key("a"))
    await asyncio.gather(*waiting)
    assert order == [0, 1, 2, 3, 4]
    assert (slots.taken, slots.claims, slots.lines) == (0, 0, {})


async def test_a_claim_that_stays_unanswered_is_waited_for_no_longer_than_the_cache() -> None:
    slots = Slots(1)
    claimed(slots, "a")
    with pytest.raises(Overloaded):
        await slots.wait(key("a"), 0.01, is_new=True)
    limited = CallerSlots(9, CallerLimits(1))
    claimed(limited, "a")
    with pytest.raises(TooManyKeys):
        await limited.wait(key("a"), 0.01, is_new=True)
    await limited.wait(key("b"), 0.01, is_new=True)
    assert (slots.lines, limited.lines) == ({}, {})


async def test_who_waits_for_a_slot_of_the_process_may_have_to_wait_for_one_of_its_caller_s_then() -> None:
    slots = CallerSlots(2, CallerLimits(1))
    of_a, of_b = claimed(slots, "a"), claimed(slots, "b")
    waiting = asyncio.create_task(slots.wait(key("a"), PATIENCE, is_new=True))
    await asyncio.sleep(0)
    of_b.lost()
    await asyncio.sleep(0)
    assert not waiting.done()
    of_a.won(is_new=True)
    with pytest.raises(TooManyKeys):
        await waiting
    assert (slots.taken, slots.lines) == (1, {})
