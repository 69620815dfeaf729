"""Old markers are deleted, and what that means for a message that is delivered after it: it isn't executed, unless wanted.

Rules of docs/contract.md: R12.15.
"""

import asyncio
import time

import pytest
from sqlalchemy import event

from oncegate import Action, Delivery, MemoryCache, Subscription
from oncegate.middleware.outcome.errors import NotRetryable
from oncegate.sql import Forgotten, Inbox, InboxBusy
from oncegate.sql.inbox import cleanup
from oncegate.sql.inbox.cleanup import Progress, Retention, _Part, _Steps
from oncegate.sql.marking import statements as marker_statements
from testing import template
from testing.postgresql import PostgreSQLServer
from testing.waiting import until as wait_for
from tests.sql.aging import TABLE, age, ago, clean, pruned
from tests.sql.conftest import ON_POSTGRESQL, PRELOADED
from tests.sql.held import Held, Pool
from tests.sql.places import Place, SyncPlace, place_of

billing = Inbox("billing")
knows_better = Inbox("billing", on_forgotten="run")


def instants(place: Place) -> list[str]:
    return [row.consumer for row in place.execute("SELECT consumer FROM oncegate_inbox WHERE message = '' ORDER BY 1")]


def test_what_was_pruned_and_is_delivered_again_is_forgotten(place: Place) -> None:
    pruned(place, billing, "a")
    with pytest.raises(Forgotten) as refused:
        place.deliver(billing, "a", sent_at=ago(days=8))
    assert isinstance(refused.value, NotRetryable)
    assert place.effects() == ["a"]


def test_a_consumer_that_was_away_for_longer_than_the_retention(place: Place) -> None:
    """What it has never seen can't be distinguished from what it has forgotten; whoever knows better has it executed."""
    pruned(place, billing, "a")
    with pytest.raises(Forgotten):
        place.deliver(billing, "b", sent_at=ago(days=8))
    assert place.effects() == ["a"]
    assert place.deliver(knows_better, "b", sent_at=ago(days=8)).first
    assert place.effects() == ["a", "b"]


def test_what_still_has_its_marker_is_a_duplicate_however_old(place: Place) -> None:
    pruned(place, billing, "a")
    place.deliver(knows_better, "b", keep=7, sent_at=ago(days=8))  # processed late: its marker is young
    for inbox in (billing, knows_better):
        again = place.deliver(inbox, "b", sent_at=ago(days=8))
        assert (again.first, again.result) == (False, 7)
    assert place.effects() == ["a", "b"]


def test_what_is_younger_or_of_unknown_age_is_executed(place: Place) -> None:
    """A clock that differs by five minutes may still be believed."""
    pruned(place, billing, "a")
    with pytest.raises(Forgotten):
        place.deliver(billing, "b", sent_at=ago(days=7, minutes=-4))
    assert place.deliver(billing, "b", sent_at=ago(days=7, minutes=-6)).first
    assert place.deliver(billing, "c").first
    assert place.deliver(billing, "d", sent_at=ago(days=-1)).first


def test_without_a_cleanup_nothing_is_forgotten(place: Place) -> None:
    assert place.deliver(billing, "a", sent_at=ago(days=8)).first
    assert clean(place).pruned == 0
    assert instants(place) == []
    assert place.deliver(billing, "b", sent_at=ago(days=8)).first


def test_one_consumer_s_instant_is_not_another_s(place: Place) -> None:
    for consumer in ("billing", "shipping", "stock"):
        place.deliver(Inbox(consumer), "a")
    age(place)
    assert clean(place, "billing", "stock").pruned == 2
    assert instants(place) == ["billing", "stock"]
    with pytest.raises(Forgotten):
        place.deliver(billing, "b", sent_at=ago(days=8))
    assert place.deliver(Inbox("shipping"), "b", sent_at=ago(days=8)).first
    with pytest.raises(Forgotten):  # its former name's markers may be gone
        place.deliver(Inbox("shipping", aliases=["billing"]), "c", sent_at=ago(days=8))


def test_each_batch_is_committed_by_itself(place: Place) -> None:
    place.run(lambda session: [billing.first(session, str(number)) for number in range(50)])
    age(place)
    place.deliver(billing, "young")
    seen: list[tuple[int, int]] = []

    def progress(done: Progress) -> None:
        rows = place.in_a_thread(lambda: place.execute("SELECT count(*) AS n FROM oncegate_inbox WHERE message <> ''"))
        seen.append((done.pruned, rows[0].n))

    assert clean(place, batch_size=20, progress=progress).pruned == 50
    assert seen == [(0, 51), (20, 31), (40, 11), (50, 1)]


def test_a_dry_run_deletes_nothing_and_records_nothing(place: Place) -> None:
    place.deliver(billing, "a")
    age(place)
    done = clean(place, dry_run=True)
    assert (done.due, done.pruned, instants(place)) == (1, 0, [])
    assert not place.deliver(billing, "a").first


def test_what_is_to_be_kept_stays(place: Place) -> None:
    place.deliver(billing, "a")
    age(place)
    assert clean(place, keep_from=ago(days=9)).pruned == 0
    assert clean(place, keep_from=ago(days=7.5)).pruned == 1


def test_cleaners_beside_each_other_and_beside_a_writer(patient: Place, pool: Pool) -> None:
    patient.run(lambda session: billing.first_many(session, [str(number) for number in range(300)]))
    age(patient)
    cleaners = [pool.submit(clean, patient, batch_size=20) for _ in range(2)]
    firsts = [patient.deliver(billing, f"new {number}", sent_at=ago(seconds=0)).first for number in range(10)]
    assert (sum(cleaner.result().pruned for cleaner in cleaners), all(firsts)) == (300, True)
    assert len(patient.effects()) == 10


@pytest.mark.parametrize("place", ON_POSTGRESQL, indirect=True)
def test_nobody_waits_for_a_cleaner_and_it_waits_for_nobody(place: Place, pool: Pool) -> None:
    place.run(lambda session: [billing.first(session, str(number)) for number in range(30)])
    age(place)
    first = Held(place, billing, "held", pool)

    def beside(session: object) -> tuple[int, int, bool]:
        connection = session.connection()  # type: ignore[attr-defined]  # a session
        mine = _Steps(TABLE, Retention(batch_size=10)).delete(connection, ago(days=7), _Part(30))
        others = place.in_a_thread(lambda: clean(place, batch_size=10).pruned)
        return mine, others, place.in_a_thread(lambda: place.deliver(billing, "new").first)

    assert place.run(beside) == (10, 20, True)
    first.release()
    assert first.outcome.result().first


@pytest.mark.parametrize("dies_at", [1, 2])
def test_killed_between_the_instant_and_a_delete(place: Place, dies_at: int) -> None:
    """Before the first batch all is still known; after it nothing is executed twice, since the instant stands before that."""
    keys = [str(number) for number in range(30)]
    for key in keys:
        place.deliver(billing, key, sent_at=ago(days=8))
    age(place)
    command = ["-m", "tests.sql.inbox.cleaners", place.url, str(dies_at)]
    done = template.run(*command, preloaded=PRELOADED, timeout=100, cwd=template.ROOT)
    assert done.returncode == -9, done.stderr
    outcomes = []
    for key in keys:
        try:
            outcomes.append("first" if place.deliver(billing, key, sent_at=ago(days=8)).first else "duplicate")
        except Forgotten:
            outcomes.append("forgotten")
    gone = 10 * (dies_at - 1)
    assert sorted(outcomes) == ["duplicate"] * (30 - gone) + ["forgotten"] * gone
    assert place.effects() == sorted(keys)


@pytest.mark.parametrize("place", ON_POSTGRESQL, indirect=True)
def test_the_first_delete_comes_later_than_the_instant_by_the_lead(place: Place) -> None:
    place.deliver(billing, "a")
    age(place)
    waited = first_delete(place)
    clean(place, lead=0.5)
    assert waited[0] >= 0.5


def first_delete(place: Place) -> list[float]:
    """Will have how long (s) after a COMMIT each DELETE came."""
    committed = [0.0]
    waited: list[float] = []
    event.listen(place.sync_engine, "commit", lambda _: committed.append(time.monotonic()))

    @event.listens_for(place.sync_engine, "before_cursor_execute")
    def on_statement(_c: object, _u: object, statement: str, *_: object) -> None:
        if statement.startswith("DELETE"):
            waited.append(time.monotonic() - committed[-1])

    return waited


@pytest.mark.parametrize("place", ON_POSTGRESQL, indirect=True)
def test_a_statement_that_takes_longer_than_the_lead_is_undone(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may not have seen what was forgotten meanwhile. Without the message's time that makes no difference."""
    monkeypatch.setattr(marker_statements, "STATEMENT_SECONDS", 0.0)
    slow = Inbox("billing")
    with pytest.raises(InboxBusy):
        place.deliver(slow, "a", sent_at=ago(seconds=0))
    assert (place.effects(), place.markers()) == ([], [])
    assert place.deliver(slow, "a").first


def test_under_the_hook_it_is_a_dead_letter(place: Place) -> None:
    pruned(place, billing, "a")
    handler = place.handler(billing, lambda _, payload: payload)

    async def deliver() -> tuple[Action, str]:
        subscription = Subscription("billing", cache=MemoryCache())
        begun = await subscription.execute(Delivery("a", b"1", sent_at=ago(days=8)), handler, 1)
        return begun.action, begun.reason

    action, reason = asyncio.run(deliver())
    assert action is Action.DEAD_LETTER
    assert "forgotten" in reason
    assert place.effects() == ["a"]


def test_an_app_may_have_it_done(
    place: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On PostgreSQL with the lead, which an app can't shorten."""
    assert marker_statements.LEAD_SECONDS >= marker_statements.STATEMENT_SECONDS + 5
    monkeypatch.setattr(cleanup, "LEAD_SECONDS", 0.3)
    place.deliver(billing, "a")
    age(place)
    caplog.set_level("INFO", "oncegate.inbox")
    waited = first_delete(place)

    async def app(until: str) -> None:
        async with billing.maintained(place.engine, every=0.05):
            await wait_for(lambda: until in caplog.text)

    asyncio.run(app("has forgotten 1 messages"))
    assert instants(place) == ["billing"]
    if place.is_postgresql:
        assert waited[0] >= 0.3
        place.execute("ALTER TABLE oncegate_inbox RENAME TO elsewhere")
    else:
        place.execute("DROP TABLE oncegate_inbox")
    try:
        asyncio.run(app("could not be pruned"))
    finally:
        if place.is_postgresql:
            place.execute("ALTER TABLE elsewhere RENAME TO oncegate_inbox")


@pytest.mark.parametrize("driver", ON_POSTGRESQL)
def test_it_goes_on_after_a_server_that_refuses_connections(
    driver: str, own_place: SyncPlace, postgresql: PostgreSQLServer, caplog: pytest.LogCaptureFixture
) -> None:
    """As one that starts, or has none left: asyncpg's own errors are none of SQLAlchemy's."""
    caplog.set_level("INFO", "oncegate.inbox")
    name = own_place.url.rpartition("/")[2]
    there = place_of(postgresql.url(name, driver))

    async def app() -> None:
        async with billing.maintained(there.engine, every=0.05):
            await wait_for(lambda: caplog.text.count("could not be pruned") >= 2)
            postgresql.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
            await wait_for(lambda: "has forgotten 0 messages" in caplog.text)

    postgresql.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    asyncio.run(app())


@pytest.mark.parametrize(
    "wrong", [{"batch_size": 0}, {"seconds": -1.0}, {"seconds": 3600.0}, {"seconds": float("nan")}, {"seconds": 1e11}]
)
def test_what_would_forget_too_much_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"batch size|age|horizon"):
        Retention(**wrong)  # type: ignore[arg-type]  # wrong on purpose


def test_an_inbox_refuses_it_too() -> None:
    with pytest.raises(ValueError, match="redelivery horizon"):
        Inbox("billing", retention=3600)
    with pytest.raises(ValueError, match="on_forgotten"):
        Inbox("billing", on_forgotten="ignore")  # type: ignore[arg-type]  # wrong on purpose
