"""The limits of one caller: attempts at once and new keys in a time; others are not concerned, and replays never count.

Rules of docs/contract.md: R4.34.
"""

import pytest

from oncegate.cache.record import State
from oncegate.middleware.admission.limits.callers import MOST_CALLERS, CallerLimits, CallerSlots
from tests.middleware.conftest import MakeDoor
from tests.middleware.door import Answering

ALICE, BOB = [("authorization", "Bearer alice")], [("authorization", "Bearer bob")]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def key(caller: str, number: int = 0) -> str:
    return f"ns:{number:020d}:{caller:.<20}"


async def test_a_caller_s_attempts_are_limited_and_nobody_else_s(door: MakeDoor) -> None:
    there = door(app := Answering(201, held=True), max_in_flight_per_caller=2)
    running = [there.begin(key=f"a-{number}", headers=ALICE) for number in range(2)]
    await app.arrivals(2)
    refused = await there.send(key="a-2", headers=ALICE)
    assert (refused.status, refused.code, refused.value("retry-after")) == (429, "too-many-keys", "1")
    assert refused.problem["retryable"] is True
    assert await there.cache.get(there.look_up_key("a-2", b"Bearer alice")) is None
    other = there.begin(key="b-1", headers=BOB)
    await app.arrivals(3)
    app.release()
    assert {(await call.answered()).status for call in (*running, other)} == {201}
    assert (await there.send(key="a-2", headers=ALICE)).status == 201, "the key was free"


async def test_an_attempt_whose_client_has_left_counts_until_it_is_over(door: MakeDoor) -> None:
    there = door(app := Answering(201, held=True), max_in_flight_per_caller=1)
    first = there.begin(key="a-1", headers=ALICE)
    await app.arrivals()
    await first.gone()
    assert (await there.send(key="a-2", headers=ALICE)).status == 429
    app.release()
    again = await there.send(key="a-1", headers=[*ALICE, ("prefer", "wait=30")])
    assert again.replayed
    assert (await there.send(key="a-2", headers=ALICE)).status == 201


async def test_what_needs_no_attempt_is_answered_all_the_same(door: MakeDoor) -> None:
    there = door(app := Answering(201, 504, 201), max_in_flight_per_caller=1)
    await there.send(key="done", headers=ALICE)
    await there.send(key="unknown", headers=ALICE)
    held = Answering(201, held=True)
    there.middleware.door.app = held
    first = there.begin(key="a-1", headers=ALICE)
    await held.arrivals()
    for _ in range(5):
        assert (await there.send(key="done", headers=ALICE)).replayed
    assert (await there.send(key="unknown", headers=ALICE)).code == "outcome-unknown"
    assert (await there.send(key="a-1", headers=ALICE)).code == "in-flight"
    held.release()
    await first.answered()
    assert app.calls == 2


@pytest.mark.parametrize("outcome", [201, 500, 429, RuntimeError("bad")])
async def test_a_slot_comes_back_whatever_the_outcome(door: MakeDoor, outcome: int | Exception) -> None:
    there = door(Answering(outcome), max_in_flight_per_caller=1)
    for number in range(3):
        call = there.begin(key=f"a-{number}", headers=ALICE)
        if isinstance(outcome, Exception):
            with pytest.raises(RuntimeError):
                await call.answered()
        else:
            assert (await call.answered()).status == outcome
    slots = there.middleware.admissions.in_flight.slots
    assert isinstance(slots, CallerSlots)
    assert slots.callers.wait(slots.caller(there.look_up_key("x", b"Bearer alice"))) == 0


async def test_new_keys_are_limited_and_replays_don_t_count(door: MakeDoor) -> None:
    there = door(app := Answering(201), new_keys_per_caller="3/h")
    for number in range(3):
        assert (await there.send(key=f"a-{number}", headers=ALICE)).status == 201
        for _ in range(4):
            assert (await there.send(key=f"a-{number}", headers=ALICE)).replayed
    refused = await there.send(key="a-3", headers=ALICE)
    assert (refused.code, 1100 < int(refused.value("retry-after") or 0) <= 1200) == ("too-many-keys", True)
    assert (await there.send(key="a-2", headers=ALICE)).replayed
    assert (await there.send(key="a-2", headers=BOB)).status == 201
    assert app.calls == 4


async def test_a_new_attempt_under_a_used_key_is_no_new_key(door: MakeDoor) -> None:
    there = door(app := Answering(500, 500, 500, 201), new_keys_per_caller="2/h")
    assert [(await there.send(headers=ALICE)).status for _ in range(4)] == [500, 500, 500, 201]
    assert (await there.send(key="a-2", headers=ALICE)).status == 201
    assert (await there.send(key="a-3", headers=ALICE)).status == 429
    assert app.calls == 5


async def test_without_limits_a_caller_has_none(door: MakeDoor) -> None:
    there = door(Answering(201))
    assert not isinstance(there.middleware.admissions.in_flight.slots, CallerSlots)
    assert await there.state("k-2") is State.ABSENT


def test_new_keys_come_back_with_time_and_never_more_than_the_rate() -> None:
    limits = CallerLimits(0, "60/m", now=(clock := Clock()))
    for number in range(60):
        assert limits.wait(key("a")) == 0, number
        limits.take(key("a"))
        limits.claim_ended(key("a"), is_new=True)
        limits.give_back(key("a"))
    assert limits.wait(key("a")) == pytest.approx(1)
    clock.now += 0.75
    assert limits.wait(key("a")) == pytest.approx(0.25)
    clock.now += 100_000
    for _ in range(60):
        limits.take(key("a"))
    assert limits.wait(key("a")) == pytest.approx(1)


def test_a_bounded_number_of_callers_is_remembered_the_latest_ones() -> None:
    limits = CallerLimits(0, "1/h", now=Clock())
    for number in range(MOST_CALLERS + 10):
        limits.take(key(str(number)))
        limits.give_back(key(str(number)))
    assert (len(limits._buckets), len(limits._running)) == (MOST_CALLERS, 0)
    assert limits.wait(key("5")) == 0
    assert limits.wait(key(str(MOST_CALLERS + 9))) > 0


@pytest.mark.parametrize("rate", ["0/s", "5", "5/d", "-1/s", "1.5/s", "5/m/", " 5/m", "1e3/s"])
def test_what_is_no_rate_is_refused(door: MakeDoor, rate: str) -> None:
    with pytest.raises(ValueError, match="600/m"):
        door(Answering(201), new_keys_per_caller=rate)


async def test_a_caller_is_one_caller_while_a_secret_is_replaced(door: MakeDoor) -> None:
    old, new = "o" * 32, "n" * 32
    before = door(app := Answering(500, 201), secret=old)
    assert (await before.send(headers=ALICE)).status == 500
    there = door(app, secret=[new, old], max_in_flight_per_caller=1, new_keys_per_caller="2/h")
    assert (await there.send(headers=ALICE)).status == 201, "a new attempt at the old address"
    for _ in range(3):
        assert (await there.send(headers=ALICE)).replayed
    slots = there.middleware.admissions.in_flight.slots
    assert isinstance(slots, CallerSlots)
    assert not slots.callers._running
    assert [(await there.send(key=f"a-{number}", headers=ALICE)).status for number in range(3)] == [201, 201, 429]
