"""An outcome that the cache has not taken yet is known: it is not executed again here, and not seen before its time.

Rules of docs/contract.md: R3.13, R5.32.
"""

import os
from collections.abc import AsyncIterator

import pytest

from oncegate.cache.backoff import Backoff
from oncegate.cache.record import State
from oncegate.cache.redis.store import RedisCache
from oncegate.middleware.admission import owed
from testing.servers import RedisServer
from testing.waiting import until
from tests.cache.inside import timed
from tests.middleware.door import PATIENCE, Answering, Door

REFUSES = ("ACL", "SETUSER", "default", "-evalsha", "-eval")
TAKES = ("ACL", "SETUSER", "default", "+evalsha", "+eval")
LASTING = {"lease": 600.0, "ttl": 7200.0}
"""Nothing ends by itself within a test, however slow the machine is."""
LAPSED = str(3600 * 1000)
"""Milliseconds that a record in flight has left to live once its lease is over: fewer than ``ttl``."""


@pytest.fixture
async def cache(server: RedisServer) -> AsyncIterator[RedisCache]:
    cache = RedisCache.from_url(server.url, timeout=PATIENCE)
    yield cache
    server.command(*TAKES)
    await cache.close()


@pytest.fixture
def no_second_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """The background doesn't try again within the test: what goes out, goes out for a reason."""
    monkeypatch.setattr(owed, "_PAUSES", Backoff(PATIENCE * 10, PATIENCE * 10, least=1.0))


async def owing(server: RedisServer, cache: RedisCache, there: Door, app: Answering, *keys: str) -> None:
    """Successes that their clients were given, and that the cache has not taken; their leases are over by the cache's clock."""
    calls = [there.begin(key=key) for key in keys]
    await app.arrivals(len(keys))
    server.command(*REFUSES)
    with timed(cache):
        app.release()
        for call in calls:
            assert (await call.answered()).status == 201
    for key in keys:
        assert server.command("PEXPIRE", there.look_up_key(key), LAPSED)


async def test_a_response_is_held_back_until_its_outcome_is_recorded_by_a_later_try(
    server: RedisServer, cache: RedisCache, caplog: pytest.LogCaptureFixture
) -> None:
    there = Door(app := Answering(201, held=True), cache, "n")
    call = there.begin()
    await app.arrivals()
    server.command(*REFUSES)
    app.release()
    await until(lambda: "is not recorded yet" in caplog.text)
    assert not call.done
    server.command(*TAKES)
    assert (await call.answered()).status == 201
    assert await there.state() is State.SUCCEEDED


@pytest.mark.interpreted
@pytest.mark.usefixtures("no_second_try")
async def test_what_is_owed_goes_out_before_a_claim_of_its_key(server: RedisServer, cache: RedisCache) -> None:
    there = Door(app := Answering(201, held=True), cache, "n", on_unknown="retry", **LASTING)
    await owing(server, cache, there, app, "k-1")
    server.command(*TAKES)
    retry = await there.send()
    assert (retry.replayed, retry.body, app.calls) == (True, b"answer 1", 1)


@pytest.mark.interpreted
@pytest.mark.usefixtures("no_second_try")
async def test_what_is_owed_is_not_executed_again_while_the_cache_does_not_take_it(
    server: RedisServer, cache: RedisCache
) -> None:
    there = Door(app := Answering(201, held=True), cache, "n", on_unknown="retry", **LASTING)
    await owing(server, cache, there, app, "k-1")
    assert (await there.send()).code == "cache-unavailable"
    assert app.calls == 1


@pytest.mark.interpreted
@pytest.mark.usefixtures("no_second_try")
async def test_what_is_owed_is_replayed_where_the_policy_is_to_run_without_a_cache(
    server: RedisServer, cache: RedisCache
) -> None:
    there = Door(app := Answering(201, held=True), cache, "n", on_cache_down="fail_open", **LASTING)
    await owing(server, cache, there, app, "k-1")
    retry = await there.send()
    assert (retry.replayed, retry.body, app.calls) == (True, b"answer 1", 1)
    assert (await there.send(b'{"amount": 2}')).code == "key-reused"


@pytest.mark.interpreted
@pytest.mark.usefixtures("no_second_try")
async def test_everything_that_is_owed_goes_out_as_soon_as_the_cache_takes_a_write(
    server: RedisServer, cache: RedisCache
) -> None:
    there = Door(app := Answering(201, held=True), cache, "n", **LASTING)
    keys = [f"owed-{number}" for number in range(5)]
    await owing(server, cache, there, app, *keys)
    in_flight = there.middleware.admissions.in_flight
    assert len(in_flight.owed.by_key) == 5
    server.command(*TAKES)
    assert (await there.send(key="new")).status == 201
    await until(lambda: not in_flight.owed.by_key)
    for key in keys:
        assert await there.state(key) is State.SUCCEEDED


@pytest.mark.interpreted
@pytest.mark.usefixtures("no_second_try")
async def test_what_is_owed_under_the_second_secret_goes_out_first_too(server: RedisServer, cache: RedisCache) -> None:
    old, new = os.urandom(32).hex(), os.urandom(32).hex()
    there = Door(app := Answering(201, held=True), cache, "n", secret=[new, old], on_unknown="retry", **LASTING)
    call = there.begin()
    await app.arrivals()
    server.command(*REFUSES)
    with timed(cache):
        app.release()
        assert (await call.answered()).status == 201
    (key,) = there.middleware.admissions.in_flight.owed.by_key
    server.command("PEXPIRE", key, LAPSED)
    server.command(*TAKES)
    turned = Door(app, cache, "n", secret=[old, new], on_unknown="retry", **LASTING)
    turned.middleware.admissions.in_flight = there.middleware.admissions.in_flight
    retry = await turned.send()
    assert (retry.replayed, app.calls) == (True, 1)
