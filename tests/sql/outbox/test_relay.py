"""A relay publishes what waits in its order, and removes what was confirmed, and nothing else.

Rules of docs/contract.md: R12.32.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import create_engine

from oncegate.cache.backoff import Backoff
from oncegate.prometheus import RelayMetrics
from oncegate.sql import OutboxSource, Relay
from oncegate.sql.outbox.relay import RelayWatch
from testing.postgresql import PostgreSQLServer
from testing.waiting import until
from tests.sql.conftest import ON_POSTGRESQL
from tests.sql.outbox.sinks import Sink, added, ended, engine_of, waiting
from tests.sql.places import Place

SQLITE = create_engine("sqlite://")
CUT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
PUBLISHED_BEFORE = """INSERT INTO oncegate_outbox (added_at, published_at, outbox, topic, key, body)
SELECT now() - interval '1 hour', now() - interval '1 hour', 'orders', 'payments', n, '' FROM generate_series(1, 5001) AS n"""
AT_ONCE = Backoff(0.001, 0.001, least=1.0)


@pytest.fixture
async def engine(place: Place) -> AsyncIterator[Any]:
    engine = engine_of(place)
    yield engine
    await ended(engine)


def arrived_more(sink: Sink, before: int) -> bool:
    return len(sink.arrived) > before


async def drained(relay: Relay) -> None:
    while await relay.publish_batch() != 0:
        pass


async def test_each_aggregate_arrives_in_order_and_nothing_stays(place: Place, engine: Any) -> None:
    added(place, *"abcab", None, *"cabc", None, *"aaaaaaaa")
    sink = Sink()
    relay = Relay(engine, sink, batch=4)
    await drained(relay)
    assert sink.numbers() == {"a": [*range(1, 12)], "b": [1, 2, 3], "c": [1, 2, 3], "": [None, None]}
    assert waiting(place) == []
    message = sink.arrived[-1]
    stamped = {"Idempotency-Key": message.key, "oncegate-aggregate": "a", "oncegate-sequence": "11"}
    assert (
        next(each.stamped() for each in sink.arrived if each.sequence == 11) | {"Idempotency-Key": message.key}
        == stamped
    )


async def test_what_is_refused_holds_up_its_own_aggregate_until_it_is_dead(place: Place, engine: Any) -> None:
    added(place, "a", "a", "b", "b", None)
    sink = Sink()
    sink.refuses = lambda message: message.aggregate == "a"
    relay = Relay(OutboxSource(engine, attempts=2, pauses=AT_ONCE), sink)
    await drained(relay)
    await asyncio.sleep(0.01)  # at least the pause
    await drained(relay)
    assert sink.numbers() == {"b": [1, 2], "": [None]}
    assert waiting(place) == [("a", 1), ("a", 2)]
    query = "SELECT attempts, dead, refusal FROM oncegate_outbox ORDER BY sequence"
    dead, behind = place.in_a_thread(lambda: place.execute(query))
    assert (dead.attempts, bool(dead.dead), dead.refusal) == (2, True, "ValueError: no")
    assert (behind.attempts, bool(behind.dead)) == (0, False)
    place.in_a_thread(lambda: place.execute("UPDATE oncegate_outbox SET dead = false, due_at = NULL"))
    sink.refuses = lambda _: False
    await drained(relay)
    assert sink.numbers()["a"] == [1, 2]


async def test_a_refused_message_is_left_alone_for_its_pause(place: Place, engine: Any) -> None:
    added(place, "a", "a")
    sink = Sink()
    sink.refuses = lambda _: True
    relay = Relay(OutboxSource(engine, pauses=Backoff(60, 60, least=1.0)), sink)
    assert [await relay.publish_batch() for _ in range(2)] == [1, 0]
    assert len(waiting(place)) == 2


async def test_a_relay_may_have_its_rows_for_as_long_as_it_likes(place: Place, engine: Any) -> None:
    added(place, "a")
    await drained(Relay(OutboxSource(engine, stall_limit=math.inf), Sink()))
    assert waiting(place) == []


async def test_a_broker_that_is_away_costs_no_attempt_and_no_message(place: Place, engine: Any) -> None:
    added(place, "a", "a", "b")
    sink = Sink()
    sink.raises, sink.refuses = ConnectionError, lambda _: True
    relay = Relay(engine, sink)
    assert await relay.publish_batch() is None
    assert len(waiting(place)) == 3
    sink.refuses = lambda _: False
    await drained(relay)
    assert sink.numbers() == {"a": [1, 2], "b": [1]}


@pytest.mark.parametrize("place", ON_POSTGRESQL, indirect=True)
@pytest.mark.parametrize("is_stopped", [True, False], ids=["the server stops", "connections are cut"])
async def test_a_database_that_goes_away_under_a_batch_is_waited_for(
    place: Place, engine: Any, postgresql: PostgreSQLServer, caplog: pytest.LogCaptureFixture, is_stopped: bool
) -> None:
    added(place, "a", "a", "b")
    sink = Sink()
    sink.gate.clear()
    relay = Relay(engine, sink, confirm_timeout=20)
    async with relay.running():
        await until(lambda: sink.waiting == 2)
        if is_stopped:
            await asyncio.to_thread(postgresql.stop)
        else:
            place.in_a_thread(lambda: place.execute(CUT))
        try:
            sink.gate.set()
            await until(lambda: "the database can't be used" in caplog.text)
            assert sink.numbers() == {"a": [1, 2], "b": [1]}, "confirmed, and nobody could remove it"
        finally:
            if is_stopped:
                await asyncio.to_thread(postgresql.start)
        await until(lambda: len(sink.arrived) == 6)
        await until(lambda: waiting(place) == [])
        assert {each.key for each in sink.arrived[3:]} == {each.key for each in sink.arrived[:3]}
        added(place, "b")
        await until(lambda: sink.arrived[-1].sequence == 2 and sink.arrived[-1].aggregate == "b")


async def test_what_is_not_confirmed_in_time_is_published_again(place: Place, engine: Any) -> None:
    added(place, "a", "a")
    sink = Sink()
    sink.gate.clear()
    relay = Relay(engine, sink, confirm_timeout=0.05)
    assert await relay.publish_batch() is None
    assert len(waiting(place)) == 2
    sink.gate.set()
    relay._confirm_timeout = 60  # now each confirmation comes, however slow the machine is
    await drained(relay)
    assert sink.numbers() == {"a": [1, 2]}


@pytest.mark.parametrize("place", ON_POSTGRESQL, indirect=True)
async def test_an_aggregate_that_another_relay_has_is_left_to_it(place: Place, engine: Any) -> None:
    added(place, "a", "a", "a", "b")
    first = OutboxSource(engine)
    taken = await first.take(1)
    second = Sink()
    await drained(Relay(engine, second))
    assert len(taken) == 1
    assert sum(map(len, second.numbers().values())) == 4 - len(waiting(place))
    assert taken[0].aggregate not in second.numbers(), "SKIP LOCKED alone would go on to its second row"
    await first.let_go()
    await drained(Relay(engine, second))
    assert second.numbers() == {"a": [1, 2, 3], "b": [1]}


@pytest.mark.parametrize("place", ["aiosqlite"], indirect=True)
async def test_on_sqlite_one_relay_is_at_work(place: Place, engine: Any) -> None:
    added(place, "a", "b")
    first, second = OutboxSource(engine), OutboxSource(engine)
    assert len(await first.take(1)) == 1
    assert list(await second.take(1)) == []
    await first.close()
    assert len(await second.take(2)) == 2
    await second.close()


async def test_what_is_kept_is_marked_and_goes_later(place: Place, engine: Any) -> None:
    added(place, "a", "a")
    source = OutboxSource(engine, keep=3600)
    sink = Sink()
    await drained(Relay(source, sink))
    assert len(waiting(place)) == 2
    assert (await source.measure()).rows == 0
    place.in_a_thread(lambda: place.execute("UPDATE oncegate_outbox SET published_at = added_at"))
    assert len(sink.arrived) == 2
    await OutboxSource(engine, keep=1e-9).measure()
    assert waiting(place) == []


@pytest.mark.parametrize("place", ["asyncpg"], indirect=True)
async def test_however_much_was_kept_for_long_enough_goes(place: Place, engine: Any) -> None:
    place.in_a_thread(lambda: place.execute(PUBLISHED_BEFORE))
    await OutboxSource(engine, keep=60).measure()
    assert waiting(place) == []


async def test_only_the_outboxes_that_are_named(place: Place, engine: Any) -> None:
    added(place, "a", None)
    others = OutboxSource(engine, "others")
    await drained(Relay(others, Sink()))
    await others.close()
    assert len(waiting(place)) == 2
    await drained(Relay(OutboxSource(engine, "others", "orders"), Sink()))
    assert waiting(place) == []


@pytest.mark.parametrize("place", ["asyncpg", "aiosqlite"], indirect=True)
async def test_an_add_of_this_process_wakes_it(place: Place, engine: Any) -> None:
    sink = Sink()
    relay = Relay(engine, sink, poll=3600)
    relay._idle = Backoff(3600, 3600, least=1.0)

    async with relay.running():
        for _ in range(2):
            before = len(sink.arrived)
            await asyncio.to_thread(added, place, "a")  # the relay is at work in this loop
            await until(partial(arrived_more, sink, before))


async def test_the_backlog_is_measured(place: Place, engine: Any) -> None:
    source = OutboxSource(engine)
    assert (await source.measure()).oldest is None
    added(place, "a", "a", None)
    sink = Sink()
    sink.refuses = lambda message: bool(message.aggregate)
    await drained(Relay(source, sink))
    backlog = await source.measure()
    assert (backlog.rows, backlog.held) == (2, 1)
    assert backlog.oldest is not None


@pytest.mark.parametrize("place", ["aiosqlite"], indirect=True)
async def test_metrics_and_a_line_of_the_log_say_how_it_goes(
    place: Place, engine: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "oncegate.relay")
    added(place, "a", "b", "b")
    registry = CollectorRegistry()
    sink = Sink()
    sink.raises, sink.refuses = ConnectionError, lambda message: message.aggregate == "b"
    relay = Relay(OutboxSource(engine), sink, watch=RelayMetrics(registry=registry), log_every=0.01)
    assert await relay.publish_batch() is None
    sink.raises, sink.refuses = ValueError, lambda message: message.sequence == 2
    async with relay.running():
        await until(lambda: "1 rows wait, the oldest since 20" in caplog.text)
        await until(lambda: registry.get_sample_value("oncegate_outbox_held") == 1)

    def sample(name: str) -> float:
        found = registry.get_sample_value(name)
        assert found is not None
        return found

    names = ("relay_published_total", "relay_published_again_total", "relay_refused_total", "outbox_rows")
    assert [sample(f"oncegate_{name}") for name in names] == [2, 1, 1, 1]
    assert time.time() - 600 < sample("oncegate_outbox_oldest_timestamp_seconds") <= time.time()
    assert "1 held up; published 2, 1 of them again, refused 1" in caplog.text


@pytest.mark.parametrize("place", ["aiosqlite"], indirect=True)
async def test_a_watch_that_raises_ends_no_relay(place: Place, engine: Any, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(RelayWatch):
        def relayed(self, *_: object) -> None:
            raise RuntimeError("relayed")

        def backlog_measured(self, *_: object) -> None:
            raise RuntimeError("measured")

    relay = Relay(OutboxSource(engine), Sink(), watch=Broken(), log_every=0.01)
    async with relay.running():
        await until(lambda: caplog.text.count("RuntimeError: measured") > 1)
        added(place, "a")
        await until(lambda: not waiting(place) and "RuntimeError: relayed" in caplog.text)


def test_what_contradicts_itself_is_refused() -> None:
    with pytest.raises(ValueError, match="stall_limit"):
        Relay(OutboxSource(SQLITE, stall_limit=5), Sink())
    for wrong in ({"stall_limit": math.nan}, {"keep": -1}, {"keep": math.nan}, {"keep": math.inf}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            OutboxSource(SQLITE, **wrong)
    with pytest.raises(ValueError, match="batch"):
        Relay(SQLITE, Sink(), batch=0)
    with pytest.raises(TypeError, match="FastStream"):
        Relay(SQLITE, object())
