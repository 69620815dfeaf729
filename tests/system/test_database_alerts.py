"""The shipped alerts for what waits in a database, in a real Prometheus: each is active after what it is for, and none before."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, start_http_server
from sqlalchemy.orm import Session

from oncegate import Delivery, MemoryCache, Subscription
from oncegate.prometheus import ConsumerMetrics, ProjectionMetrics, RelayMetrics
from oncegate.sql import Inbox, OutboxSource, Relay, SequenceEarly
from oncegate.sql.inbox.create import create
from testing.command_line import invoke
from testing.servers import free_port
from testing.waiting import until, wait_until
from tests.sql.outbox.sinks import Sink, added
from tests.sql.places import SyncPlace
from tests.sql.projections.accounts import Ledger, make, position, projection
from tests.system.prometheus import OF_DATABASES, Prometheus

LONG_AGO = "datetime('now', '-10 minutes')"
MORE = (
    "INSERT INTO oncegate_outbox (added_at, outbox, topic, key, body) WITH RECURSIVE each (n) AS (SELECT 1 UNION ALL SELECT n + 1"
    " FROM each WHERE n < 10000) SELECT added_at, outbox, topic, n, body FROM oncegate_outbox, each"
)
"""Copies of the one row that is there."""


@pytest.fixture
def place(tmp_path: Path) -> SyncPlace:
    url = f"sqlite:///{tmp_path}/shop.db"
    create(url, None)
    assert invoke("outbox", "create", "--database", url).returncode == 0
    return SyncPlace(url)


@pytest.mark.timeout(600)  # one alert after the other
def test_each_alert_is_active_after_what_it_is_for_and_none_before(place: SyncPlace) -> None:
    registry, port = CollectorRegistry(), free_port()
    ledger = Inbox("ledger", order="contiguous", watch=ConsumerMetrics("ledger", registry=registry))
    metrics, sink = RelayMetrics(registry=registry), Sink()
    server, thread = start_http_server(port, "127.0.0.1", registry)
    expected = set[str]()
    try:
        with Prometheus(f"127.0.0.1:{port}", "/metrics") as prometheus:
            active = partial(prometheus.become_active, expected)

            wait_until(lambda: prometheus.scrapes() >= 2, "it is looked at")
            asyncio.run(_deliver(place.handler(ledger, _nothing)))
            added(place, "a", "b")
            place.run(ledger.measure)
            asyncio.run(_measured(place, sink, metrics))
            active()

            place.execute(f"UPDATE oncegate_parked SET parked_at = {LONG_AGO}")
            place.run(ledger.measure)
            active("OncegateAggregatesWaiting")

            for _ in range(30):  # by hand, as often as a broker delivers it
                with pytest.raises(SequenceEarly):
                    place.run(lambda session: bool(ledger.first(session, "3", aggregate="account-7", sequence=3)))
            active("OncegateMostAreEarly")

            place.execute(f"UPDATE oncegate_outbox SET added_at = {LONG_AGO}")
            asyncio.run(_measured(place, sink, metrics))
            active("OncegateOutboxOld")

            sink.refuses = lambda message: message.aggregate == "a"
            asyncio.run(_measured(place, sink, metrics, batches=1))
            active("OncegateOutboxHeld")

            place.execute(MORE)
            asyncio.run(_measured(place, sink, metrics))
            active("OncegateOutboxGrows")
            make(place)
            Ledger().produce(place, "bad")
            asyncio.run(_applied(place, ProjectionMetrics(registry=registry)))
            active("OncegateProjectionStands")
            assert expected == OF_DATABASES
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


async def _deliver(handler: Any) -> None:
    """A message that comes before its turn."""
    delivery = Delivery("2", b"p", aggregate="account-7", sequence=2)
    await Subscription("ledger", cache=MemoryCache()).execute(delivery, handler, "p")


def _nothing(_session: Session, _payload: Any) -> None:
    raise AssertionError("its turn has not come")


async def _applied(place: SyncPlace, metrics: ProjectionMetrics) -> None:
    """A projection stands at an event."""

    def fails(_event: Any, _session: Session) -> None:
        raise LookupError("no such account")

    async with projection(place, work=fails).running(place.engine, watch=metrics):
        await until(lambda: getattr(position(place), "attempts", 0), "it stands")


async def _measured(place: SyncPlace, sink: Sink, metrics: RelayMetrics, *, batches: int = 0) -> None:
    """A relay looks at what waits, after so many batches."""
    source = OutboxSource(place.engine)
    relay = Relay(source, sink, watch=metrics)
    for _ in range(batches):
        await relay.publish_batch()
    await relay._report()
    await source.close()
