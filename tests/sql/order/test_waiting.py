"""Operators see which aggregates wait, and for what; they have it tried again, or skip it, and what was parked follows.

Rules of docs/contract.md: R11.22, R12.17.
"""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import NullPool, create_engine, text

from oncegate import (
    Action,
    Begun,
    Delivery,
    DeliveryDecision,
    MemoryCache,
    NotRetryable,
    Subscription,
)
from oncegate.prometheus import ConsumerMetrics
from oncegate.sql import Inbox
from testing.command_line import OPERATOR, invoke
from testing.gateway import DEADLINE
from testing.waiting import wait_until
from tests.sql.handlers.parking import applies, consume, deliveries, failing, parked, sweep
from tests.sql.places import Place, SyncPlace

EACH = pytest.mark.parametrize("place", ["psycopg", "pysqlite"], indirect=True)


def waiting(place: Place) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(invoke("inbox", "waiting", "--json", "--database", place.url).stdout)[
        "waiting"
    ]
    assert all(each.pop("since") for each in found)
    return found


@EACH
def test_what_waits_is_shown_and_follows_what_was_skipped(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    ledger = Inbox("ledger", order="contiguous")
    handler = place.handler(ledger, failing("a001")[1])
    consume(handler, *deliveries(2, 3), *deliveries(2, aggregate="b"), *deliveries(1))
    (dead, never) = sorted(waiting(place), key=lambda each: str(each["aggregate"]))
    assert dead.pop("record")
    reason = "NotRetryable: no such account"
    of_a = {"aggregate": "a", "waits_for": 1, "behind": 2, "attempts": 1, "reason": reason, "early": 0}
    of_b = {"aggregate": "b", "waits_for": 1, "behind": 1, "attempts": 0, "reason": None, "record": None, "early": 0}
    assert [dead, never] == [{"consumer": "ledger"} | of_a, {"consumer": "ledger"} | of_b]
    line = invoke("inbox", "waiting", "--database", place.url).stdout.splitlines()[0]
    assert "waits for 1 since" in line

    skip = ["inbox", "skip", "ledger", "a", "--reason", "withdrawn", "--database", place.url, "--sequence"]
    refused = invoke(*skip, "2")
    assert (refused.returncode, refused.stderr) == (
        1, "oncegate: the last applied number of this aggregate is 0: only 1 can be skipped\n",
    )  # fmt: skip
    done = invoke(*skip, "1")
    assert done.stdout == "skipped 1, 2 parked behind it\n"
    assert done.stderr == f"oncegate.audit: number 1 of a at ledger: skipped by {OPERATOR}: withdrawn\n"
    assert f"number 1 of a at ledger: skipped by {OPERATOR}: withdrawn" in caplog.text
    sweep(ledger, lambda: parked(place) == [2])
    assert place.effects() == ["a002", "a003"]
    (late,) = consume(handler, *deliveries(1))
    assert (late.action, place.effects()) == (Action.ACKNOWLEDGE, ["a002", "a003"])
    assert invoke(*skip, "1").returncode == 1


@pytest.mark.parametrize("place", ["psycopg", "asyncpg"], indirect=True)
def test_a_skip_that_a_consumer_deadlocks_with_is_done_once_that_has_ended(place: Place) -> None:
    handler = place.handler(Inbox("ledger", order="contiguous"), failing("a001")[1])
    consume(handler, *deliveries(1, 2))
    waits = text("SELECT count(*) FROM pg_locks WHERE NOT granted AND pid <> pg_backend_pid()")
    engine = create_engine(place.url.replace("asyncpg", "psycopg"), poolclass=NullPool)
    with engine.connect() as other, ThreadPoolExecutor(1) as pool:
        other.execute(text("SELECT 1 FROM oncegate_order FOR UPDATE"))
        arguments = "ledger", "a", "--sequence", "1", "--reason", "withdrawn", "--database", place.url
        skipped = pool.submit(invoke, "inbox", "skip", *arguments)
        wait_until(
            lambda: other.execute(waits).scalar_one() > 0, "the skip waits for the order's row, and has the parked one"
        )
        other.execute(text("UPDATE oncegate_parked SET attempts = attempts"))  # whoever waited first is undone
        other.commit()
        done = skipped.result(DEADLINE)
    assert (done.returncode, done.stdout) == (0, "skipped 1, 1 parked behind it\n"), done.stderr


@EACH
def test_what_was_skipped_lets_the_rest_follow_with_the_next_message_too(place: Place) -> None:
    handler = place.handler(Inbox("ledger", order="contiguous"), applies)
    consume(handler, *deliveries(2, 3))
    invoke("inbox", "skip", "ledger", "a", "--sequence", "1", "--reason", "x", "--database", place.url)
    consume(handler, *deliveries(4))
    assert (place.effects(), parked(place)) == (["a002", "a003", "a004"], [])


@EACH
def test_a_parked_one_that_has_failed_for_good_is_tried_again(place: Place) -> None:
    ledger = Inbox("ledger", order="contiguous")
    broken, work = failing("a002")
    handler = place.handler(ledger, work)
    consume(handler, *deliveries(3, 2, 1))
    (found,) = waiting(place)
    assert (found["waits_for"], found["behind"], found["attempts"]) == (2, 1, 1)
    broken.clear()
    done = invoke("inbox", "retry", "ledger", "a", "--reason", "mended", "--database", place.url)
    assert done.stdout == "2 is tried again\n"
    assert done.stderr == f"oncegate.audit: number 2 of a at ledger: retried by {OPERATOR}: mended\n"
    sweep(ledger, lambda: not parked(place))
    assert place.effects() == ["a001", "a002", "a003"]
    again = invoke("inbox", "retry", "ledger", "a", "--database", place.url)
    assert (again.returncode, again.stdout) == (1, "")
    assert invoke("inbox", "waiting", "--database", place.url).stdout == "nothing waits\n"


@EACH
def test_a_dead_letter_that_is_published_again_stays_one_and_inbox_retry_is_the_way(place: Place) -> None:
    """As docs/ordering.md has it."""
    ledger = Inbox("ledger", order="contiguous")
    broken, work = failing("a001")
    handler = place.handler(ledger, work)
    subscription = Subscription("ledger", cache=MemoryCache())

    async def deliver(delivery: Delivery) -> Begun:
        begun = await subscription.execute(delivery, handler, f"a{delivery.sequence:03}")
        await subscription.drain()
        return begun

    first, second = deliveries(1, 2)
    asyncio.run(deliver(first))
    asyncio.run(deliver(second))
    broken.clear()
    again = asyncio.run(deliver(first))
    assert (again.decision, again.action) == (DeliveryDecision.EXHAUSTED, Action.DEAD_LETTER)
    (found,) = waiting(place)
    assert (found["waits_for"], found["reason"]) == (1, "NotRetryable: no such account")
    assert invoke("inbox", "retry", "ledger", "a", "--database", place.url).returncode == 0
    sweep(ledger, lambda: not parked(place))
    assert place.effects() == ["a001", "a002"]


@EACH
def test_one_that_is_not_stored_is_published_again_under_another_key(place: Place) -> None:
    """A consumer of `first`, as docs/ordering.md has it."""
    broken = {"a-1"}
    subscription = Subscription("ledger", cache=MemoryCache())

    async def deliver(delivery: Delivery) -> Begun:
        def handle() -> None:
            if delivery.key in broken:
                raise NotRetryable("no such account")
            place.deliver(Inbox("ledger", order="contiguous"), delivery.key, aggregate="a", sequence=delivery.sequence)

        return await subscription.execute(delivery, lambda: asyncio.to_thread(handle))

    (first,) = deliveries(1)
    assert asyncio.run(deliver(first)).action is Action.DEAD_LETTER
    assert waiting(place) == []
    assert asyncio.run(deliver(replace(first, key="another key"))).action is Action.ACKNOWLEDGE
    assert place.effects() == ["another key"]


@EACH
def test_one_that_is_delivered_again_after_it_failed_for_good_lets_the_rest_follow(place: Place) -> None:
    broken, work = failing("a001")
    handler = place.handler(Inbox("ledger", order="contiguous"), work)
    consume(handler, *deliveries(1, 1, 2))
    assert parked(place) == [1, 2]
    broken.clear()
    (again,) = deliveries(1)
    consume(handler, replace(again, key="published again, under another key"))
    assert (place.effects(), parked(place)) == (["a001", "a002"], [])


@EACH
def test_decisions_and_what_waits_are_counted(place: Place) -> None:
    registry = CollectorRegistry()
    ledger = Inbox("ledger", order="contiguous", watch=ConsumerMetrics("ledger", registry=registry))
    handler = place.handler(ledger, applies)
    consume(handler, *deliveries(1))
    consume(handler, *deliveries(1, 3, 4), *deliveries(5, aggregate="b"))
    consume(handler, replace(deliveries(1)[0], key="another"))
    sweep(ledger, lambda: registry.get_sample_value("oncegate_inbox_parked_messages", {"consumer": "ledger"}) == 3)

    def counted(decision: str) -> float | None:
        labels = {"consumer": "ledger", "decision": decision}
        return registry.get_sample_value("oncegate_inbox_deliveries_total", labels)

    found = {name: counted(name) for name in ("first", "duplicate", "stale", "early", "forked")}
    assert found == {"first": 1, "duplicate": 1, "stale": 0, "early": 3, "forked": 1}
    assert registry.get_sample_value("oncegate_inbox_aggregates_waiting", {"consumer": "ledger"}) == 2
    assert registry.get_sample_value("oncegate_inbox_parked_oldest_timestamp_seconds", {"consumer": "ledger"})


@EACH
def test_no_aggregate_s_name_makes_a_line_of_its_own(place: Place) -> None:
    forged = "a\noncegate.audit: number 1 of b at ledger: skipped by alice\u202e"
    consume(place.handler(Inbox("ledger", order="contiguous"), applies), *deliveries(2, aggregate=forged))
    shown = invoke("inbox", "waiting", "--database", place.url).stdout
    assert (shown.count("\n"), "\u202e" in shown) == (1, False)
    place_and_reason = ("--database", place.url, "--reason", "x")
    skipped = invoke("inbox", "skip", "ledger", forged, "--sequence", "1", *place_and_reason)
    assert (skipped.returncode, skipped.stderr.count("\n"), "\u202e" in skipped.stderr) == (0, 1, False)
    refused = invoke("inbox", "skip", "ledger", "a", "--sequence", "1", *place_and_reason[:-1], "because \u202e")
    assert (refused.returncode, "without marks that hide in a text" in refused.stderr) == (2, True)


@EACH
def test_check_says_which_consumers_aggregates_wait(place: Place) -> None:
    def findings() -> list[tuple[str, str]]:
        found = json.loads(invoke("check", "--json", "--database", place.url).stdout)["findings"]
        if not place.is_postgresql:  # whose database others share
            assert not any("outbox" in each["text"] for each in found), "there is none"
        return [(each["verdict"], each["text"]) for each in found if each["area"] == "order"]

    handler = place.handler(Inbox("ledger", order="contiguous"), applies)
    assert findings() == [("good", "no aggregate waits for a number")]
    consume(handler, *deliveries(2, 3), *deliveries(2, aggregate="b"))
    assert findings() == [("good", "ledger: 2 aggregates wait, 3 messages are parked, none for long")]
    place.execute("UPDATE oncegate_parked SET parked_at = '2026-01-02 03:04:05'")
    ((severity, line),) = findings()
    assert (severity, line[:95]) == (
        "advice", "ledger: 2 aggregates wait, 3 messages are parked, the oldest since 2026-01-02 03:04:05 UTC, for",
    )  # fmt: skip
    assert line.endswith(f" s: oncegate inbox waiting --database {place.url}")
    assert invoke("check", "--strict", "--database", place.url).returncode == 1
    consume(handler, *deliveries(1), *deliveries(1, aggregate="b"))
    assert findings() == [("good", "no aggregate waits for a number")]


def test_without_the_tables_it_is_one_line(tmp_path: Any) -> None:
    SyncPlace(f"sqlite:///{tmp_path}/empty.db").execute("CREATE TABLE other (id INTEGER)")
    for arguments in (
        ["waiting"],
        ["retry", "ledger", "a"],
        ["skip", "ledger", "a", "--sequence", "1", "--reason", "x"],
    ):
        done = invoke("inbox", *arguments, "--database", f"sqlite:///{tmp_path}/empty.db")
        assert (done.returncode, done.stdout) == (1, "")
        assert "oncegate inbox create" in done.stderr
        assert "Traceback" not in done.stderr
