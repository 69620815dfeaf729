"""Caches that somebody else wrote, or changed: what they do at a claim and at an outcome is never passed by."""

import asyncio
from typing import Any

import pytest

from oncegate.cache.callbacks import CoroutineCalls, callbacks
from oncegate.cache.memory.store import MemoryCache
from oncegate.cache.record import Claim, ClaimRequest, Record, State
from oncegate.cache.redis.store import RedisCache
from testing.waiting import until
from tests.middleware.door import Answering, Door


class Counting(MemoryCache):
    """Counts, and asks the one it is made from."""

    claims = outcomes = 0

    async def claim(self, key: str, request: ClaimRequest, **call: Any) -> Claim:
        self.claims += 1
        return await super().claim(key, request, **call)

    async def complete(self, key: str, outcome: Record, **call: Any) -> bool:
        self.outcomes += 1
        return await super().complete(key, outcome, **call)


async def test_a_subclass_s_own_claim_and_complete_are_called() -> None:
    cache = Counting()
    there = Door(app := Answering(201), cache, "n")
    assert (await there.send()).status == 201
    assert (await there.send()).replayed
    assert (app.calls, cache.claims, cache.outcomes) == (1, 2, 1)


@pytest.mark.parametrize("name", ["claim", "complete"])
@pytest.mark.parametrize("cache", [MemoryCache(), RedisCache.from_url("redis://127.0.0.1:1")], ids=["memory", "redis"])
def test_nothing_is_put_in_the_place_of_a_call_that_would_be_passed_by(
    cache: MemoryCache | RedisCache, name: str
) -> None:
    """Ours are called by callback. What is changed is a class derived from one, or a cache around it."""
    with pytest.raises(AttributeError):
        setattr(cache, name, None)


async def test_what_is_put_in_the_place_of_a_derived_class_s_call_is_called() -> None:
    cache = type("Derived", (MemoryCache,), {})()
    calls = []
    original = cache.claim

    async def in_its_place(key: str, request: ClaimRequest, **call: Any) -> Any:
        calls.append(key)
        return await original(key, request, **call)

    cache.claim = in_its_place
    there = Door(Answering(201), cache, "n")
    assert (await there.send()).status == 201
    assert len(calls) == 1


class Around:
    """A cache around one of ours, which passes on all that it doesn't know."""

    def __init__(self) -> None:
        self.inner = MemoryCache()
        self.claims = 0

    async def claim(self, key: str, request: ClaimRequest, **call: Any) -> Claim:
        self.claims += 1
        return await self.inner.claim(key, request, **call)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


async def test_the_claim_of_a_cache_around_ours_is_called() -> None:
    cache: Any = Around()
    there = Door(app := Answering(201), cache, "n")
    assert (await there.send()).status == 201
    assert (await there.send()).replayed
    assert (app.calls, cache.claims) == (1, 2)


async def test_an_outcome_whose_call_is_cancelled_is_recorded_all_the_same() -> None:
    class Cancelled(Counting):
        async def complete(self, key: str, outcome: Record, **call: Any) -> bool:
            if not self.outcomes:
                self.outcomes += 1
                raise asyncio.CancelledError
            return await super().complete(key, outcome, **call)

    there = Door(app := Answering(201), Cancelled(), "n")
    assert (await there.send()).status == 201
    await there.becomes(State.SUCCEEDED)
    assert app.calls == 1


async def test_an_outcome_is_recorded_whatever_a_cache_raises_before(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Counting):
        async def complete(self, key: str, outcome: Record, **call: Any) -> bool:
            if self.outcomes < 3:
                self.outcomes += 1
                raise OSError("no space left on device")
            return await super().complete(key, outcome, **call)

    there = Door(Answering(201), cache := Failing(), "n")
    assert (await there.send()).status == 201
    await there.becomes(State.SUCCEEDED)
    assert cache.outcomes == 4
    assert caplog.text.count("the outcome is not recorded yet: no space left on device") == 3


async def test_a_lease_is_renewed_again_whatever_a_cache_has_raised() -> None:
    class Failing(Counting):
        renewed = 0

        async def renew(self, key: str, **call: Any) -> bool:
            self.renewed += 1
            if self.renewed == 1:
                raise OSError("no space left on device")
            return await super().renew(key, **call)

    there = Door(app := Answering(201, held=True), cache := Failing(), "n", lease=1)
    call = there.begin()
    await until(lambda: cache.renewed >= 3)
    app.release()
    assert (await call.answered()).status == 201
    assert (await there.send()).replayed


class Derived(MemoryCache):
    """Changes nothing, and could."""


class DerivedRedis(RedisCache):
    """Changes nothing, and could."""


def test_ours_are_called_by_callback_and_what_is_derived_from_them_by_its_coroutines() -> None:
    for cache in (MemoryCache(), RedisCache.from_url("redis://127.0.0.1:1")):
        assert not isinstance(callbacks(cache), CoroutineCalls)
    for derived in (Derived(), DerivedRedis.from_url("redis://127.0.0.1:1")):
        assert isinstance(callbacks(derived), CoroutineCalls)


@pytest.mark.parametrize("turns", range(4))
async def test_a_request_that_is_cancelled_while_a_cache_of_its_own_is_called_gives_its_claim_back(turns: int) -> None:
    """Whether its claim has not begun, is under way, or was won without anybody having noticed."""
    cache = Counting()
    there = Door(app := Answering(201, held=True), cache, "n")
    call = there.begin()
    for _ in range(turns):
        await asyncio.sleep(0)
    await call.gone()
    app.release()
    await until(lambda: not there.slots and len(asyncio.all_tasks()) == 1)
    assert await there.state() is (State.SUCCEEDED if app.calls else State.ABSENT)


async def test_a_claim_that_is_not_made_yet_is_not_made_for_a_request_that_was_cancelled() -> None:
    """Else it would be won behind its release, and stand in the way until its lease lapses."""

    class Slow(Counting):
        def __init__(self) -> None:
            super().__init__()
            self.reached, self.goes_on = asyncio.Event(), asyncio.Event()

        async def claim(self, key: str, request: ClaimRequest, **call: Any) -> Claim:
            self.reached.set()
            await self.goes_on.wait()
            return await super().claim(key, request, **call)

    cache = Slow()
    there = Door(app := Answering(201), cache, "n")
    call = there.begin()
    await cache.reached.wait()
    await call.gone()
    await until(lambda: not there.middleware.admissions.in_flight.owed.by_key)
    cache.goes_on.set()
    await until(lambda: len(asyncio.all_tasks()) == 1)
    assert (app.calls, there.slots, await there.state()) == (0, 0, State.ABSENT)
