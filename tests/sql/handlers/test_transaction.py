"""`Inbox.transaction`: begin, mark, call, keep, commit, under the hook; and what the hook makes of its errors."""

import asyncio
import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from oncegate import Action, Begun, Delivery, MemoryCache, Subscription, SubscriptionSettings
from oncegate.middleware.consumers.handlers.handling import current
from oncegate.sql import CommitUnknown, Inbox, InboxBusy, InboxMisused, InboxUnavailable, KeyReused
from testing.postgresql import PostgreSQLServer
from tests.sql.conftest import ON_POSTGRESQL
from tests.sql.places import EFFECT, AsyncPlace, Place, SyncPlace, in_loop

billing = Inbox("billing")


def pays(session: Session, payload: Any) -> dict[str, Any]:
    session.execute(EFFECT, {"what": payload})
    return {"paid": payload}


def consume(
    handler: Callable[..., Any], *keys: str | None, payload: bytes = b"", cache: MemoryCache | None = None
) -> list[Begun]:
    """What the hook makes of deliveries of ``keys``, its records in ``cache``: none of an earlier process without one."""

    async def run() -> list[Begun]:
        subscription = Subscription(
            "billing", cache=MemoryCache() if cache is None else cache, settings=SubscriptionSettings(max_attempts=2)
        )
        done = [await subscription.execute(Delivery(key, payload or b"p"), handler, key or "no key") for key in keys]
        await subscription.drain()
        return done

    return asyncio.run(run())


def test_a_message_is_marked_with_its_effect(place: Place) -> None:
    handler = place.handler(billing, pays)
    (begun,) = consume(handler, "a")
    assert (begun.action, begun.execution.returned) == (Action.ACKNOWLEDGE, {"paid": "a"})
    assert (place.effects(), place.markers()) == (["a"], [("billing", begun.record)])


def test_what_a_hook_has_forgotten_the_inbox_knows_with_its_result(place: Place) -> None:
    """A death between the commit and the hook's record, and one with ``memory://``."""
    handler = place.handler(billing, pays)
    consume(handler, "a")
    (again,) = consume(handler, "a")
    assert (again.attempt, again.action, again.execution.returned) == (1, Action.ACKNOWLEDGE, {"paid": "a"})
    assert place.effects() == ["a"]


def test_another_payload_is_a_dead_letter(place: Place) -> None:
    handler = place.handler(billing, pays)
    consume(handler, "a", payload=b"5")
    (other,) = consume(handler, "a", payload=b"500")
    assert isinstance(other.execution.raised, KeyReused)
    assert other.action is Action.DEAD_LETTER
    assert place.effects() == ["a"]


def test_a_failure_is_rolled_back_and_tried_again(place: Place) -> None:
    def fails_once(session: Session, payload: Any) -> Any:
        pays(session, payload)
        if not attempts:
            attempts.append(1)
            raise ZeroDivisionError
        return None

    attempts: list[int] = []
    handler = place.handler(billing, fails_once)
    first, second = consume(handler, "a", "a")
    assert (first.action, second.action, second.attempt) == (Action.REDELIVER, Action.ACKNOWLEDGE, 2)
    assert place.effects() == ["a"]


def test_without_a_key_it_runs_without_a_marker_and_says_so(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    handler = place.handler(billing, pays)
    assert [begun.action for begun in consume(handler, None, None)] == [Action.ACKNOWLEDGE] * 2
    assert (place.effects(), place.markers()) == (["no key", "no key"], [])
    assert "without a marker" in caplog.text


def test_outside_of_a_delivery_it_is_refused(place: Place) -> None:
    result = place.handler(billing, pays)
    with pytest.raises(InboxMisused, match="no delivery"):
        asyncio.run(result("a")) if inspect.iscoroutinefunction(result) else result("a")
    assert place.effects() == []


def test_a_handler_may_use_savepoints(place: Place) -> None:
    def work(session: Session, payload: Any) -> None:
        with session.begin_nested():
            pays(session, "kept")
        with session.begin_nested() as savepoint:
            pays(session, "undone")
            savepoint.rollback()

    if place.is_postgresql:  # SQLite's drivers need SQLAlchemy's recipe for savepoints
        assert consume(place.handler(billing, work), "a")[0].action is Action.ACKNOWLEDGE
        assert place.effects() == ["kept"]


@pytest.mark.parametrize("place", ON_POSTGRESQL, indirect=True)
def test_an_error_that_the_handler_goes_on_after_is_no_success(place: Place) -> None:
    """PostgreSQL has undone the transaction then, and answers its COMMIT with a ROLLBACK, which looks like a success."""

    def work(session: Session, payload: Any) -> None:
        pays(session, payload)
        with suppress(DBAPIError):
            session.execute(text("SELECT 1/0"))

    (begun,) = consume(place.handler(billing, work), "a")
    assert isinstance(begun.execution.raised, DBAPIError)
    assert begun.action is Action.REDELIVER
    assert (place.effects(), place.markers()) == ([], [])


@pytest.mark.parametrize("place", ON_POSTGRESQL, indirect=True)
def test_a_conflict_in_the_handler_counts_as_no_attempt(place: Place) -> None:
    def work(session: Session, payload: Any) -> None:
        session.execute(text("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '40P01'; END $$"))

    done = consume(place.handler(billing, work), "a", "a", "a")
    assert all(isinstance(begun.execution.raised, InboxBusy) for begun in done)
    assert [(begun.attempt, begun.action) for begun in done] == [(1, Action.REDELIVER)] * 3


def test_a_constraint_that_is_violated_is_the_handlers_failure(place: Place) -> None:
    def work(session: Session, payload: Any) -> None:
        session.execute(text("INSERT INTO effects (what) VALUES (NULL)"))

    done = consume(place.handler(billing, work), "a", "a")
    assert all(isinstance(begun.execution.raised, DBAPIError) for begun in done)
    assert [(begun.attempt, begun.action) for begun in done] == [(1, Action.REDELIVER), (2, Action.DEAD_LETTER)]


@pytest.fixture
def own_server() -> Any:
    with PostgreSQLServer() as server:
        yield server


@pytest.mark.parametrize("kind", [AsyncPlace, SyncPlace])
def test_a_database_that_stops_acknowledges_nothing(own_server: PostgreSQLServer, kind: type[Place]) -> None:
    """Before begin, in the middle of the handler, before COMMIT; then it is started again."""
    driver = "asyncpg" if kind is AsyncPlace else "psycopg"
    place = kind(own_server.url(own_server.database(), driver))
    place.prepare()
    stops: list[str] = ["in mid-handler", "before COMMIT", "not at all"]

    def work(session: Session, payload: Any) -> None:
        stop = stops.pop(0)
        if stop == "in mid-handler":
            own_server.stop()
        pays(session, payload)
        if stop == "before COMMIT":
            event.listen(session, "before_commit", lambda _: own_server.stop(), once=True)

    handler, cache = place.handler(billing, work), MemoryCache()
    own_server.stop()
    (away,) = consume(handler, "a", cache=cache)
    own_server.start()
    (middle,) = consume(handler, "a", cache=cache)
    own_server.start()
    (commit,) = consume(handler, "a", cache=cache)
    own_server.start()
    (last,) = consume(handler, "a", cache=cache)
    assert [type(begun.execution.raised) for begun in (away, middle)] == [InboxUnavailable] * 2
    assert isinstance(commit.execution.raised, CommitUnknown)
    assert [begun.action for begun in (away, middle, commit)] == [Action.REDELIVER] * 3
    assert (last.attempt, last.action) == (2, Action.ACKNOWLEDGE)  # of the three only the unknown one counts
    assert place.effects() == ["a"]


def test_the_handler_has_the_signature_without_the_session() -> None:
    def pay(payment: dict[str, int], session: Session, again: bool = False) -> int:
        return 1

    made = billing.transaction(sessionmaker(create_engine("sqlite://")))(pay)
    assert list(inspect.signature(made).parameters) == ["payment", "again"]
    assert set(made.__annotations__) == {"payment", "again", "return"}


def test_what_does_not_fit_together_is_refused_where_it_is_decorated() -> None:
    async def pay(payload: Any, session: Any) -> None: ...

    def forgetful(payload: Any) -> None: ...

    sync_sessions = sessionmaker(create_engine("sqlite://"))
    with pytest.raises(TypeError, match="a sessionmaker for a plain one"):
        billing.transaction(sync_sessions)(pay)
    with pytest.raises(TypeError, match="a sessionmaker for a plain one"):
        billing.transaction(async_sessionmaker())(forgetful)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(TypeError, match="payload and the session"):
        billing.transaction(sync_sessions)(forgetful)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(TypeError, match="give a sessionmaker"):
        billing.transaction(AsyncSession())  # type: ignore[call-overload]  # wrong on purpose


@pytest.mark.parametrize("place", ON_POSTGRESQL, indirect=True)
@pytest.mark.parametrize("key", ["a", None])
def test_a_server_that_takes_no_connections_yet_costs_no_attempt(
    place: Place, postgresql: PostgreSQLServer, key: str | None
) -> None:
    """Its refusal is an answer, as while it recovers from a crash: drivers raise it otherwise than where nobody listens."""
    postgresql.execute("DROP ROLE IF EXISTS refused")
    postgresql.execute("CREATE ROLE refused LOGIN CONNECTION LIMIT 0")
    refused = type(place)(place.url.replace("postgres@", "refused@"))
    (begun,) = consume(refused.handler(billing, pays), key)
    assert isinstance(begun.execution.raised, InboxUnavailable), begun.execution.raised
    assert begun.action is Action.REDELIVER
    assert place.effects() == []


def test_a_handler_is_called_by_hand_within_once(place: Place) -> None:
    handler = place.handler(billing, pays)

    async def consume_by_hand() -> Any:
        subscription = Subscription("billing", cache=MemoryCache())
        delivery, returned = Delivery("a", b"p"), None
        async for attempt in (once := subscription.once(delivery)):
            async with attempt:
                returned = await in_loop(handler, "a")
        assert once.action is Action.ACKNOWLEDGE
        assert current() == ()
        await subscription.drain()
        return returned

    assert [asyncio.run(consume_by_hand()) for _ in range(2)] == [{"paid": "a"}] * 2
    assert place.effects() == ["a"]


def test_a_second_transaction_of_one_delivery_is_not_skipped_but_refused(place: Place) -> None:
    """The first one's marker would show it as done."""
    handler = place.handler(billing, pays)

    async def both() -> Begun:
        subscription = Subscription("billing", cache=MemoryCache())

        async def pay_twice(payload: str) -> None:
            await in_loop(handler, payload)
            await in_loop(handler, f"{payload} again")

        return await subscription.execute(Delivery("a", b"p"), pay_twice, "a")

    begun = asyncio.run(both())
    assert isinstance(begun.execution.raised, InboxMisused)
    assert "all in one transaction" in str(begun.execution.raised)
    assert place.effects() == ["a"]


def test_a_transaction_that_failed_may_be_tried_again_within_a_delivery(place: Place) -> None:
    def fails_once(session: Session, payload: Any) -> None:
        pays(session, payload)
        attempts.append(1)
        if len(attempts) == 1:
            raise ZeroDivisionError

    attempts: list[int] = []
    handler = place.handler(billing, fails_once)

    async def tries_again(payload: str) -> None:
        with suppress(ZeroDivisionError):
            await in_loop(handler, payload)
        await in_loop(handler, payload)

    (begun,) = consume(tries_again, "a")
    assert begun.action is Action.ACKNOWLEDGE
    assert place.effects() == ["a"]


@pytest.mark.parametrize("place", ["asyncpg", "aiosqlite"], indirect=True)
@pytest.mark.parametrize("attempts", [1, 2])
def test_a_time_out_before_commit_is_a_failure(place: Place, attempts: int) -> None:
    """It was rolled back, so that it is known: nothing was done."""

    async def never(session: AsyncSession) -> None:
        await asyncio.Event().wait()

    @billing.transaction(async_sessionmaker(place.engine))
    async def pay(payload: str, session: AsyncSession) -> None:
        await session.execute(EFFECT, {"what": payload})
        await never(session)

    async def run() -> list[Begun]:
        settings = SubscriptionSettings(attempt_timeout=0.2, max_attempts=2)
        subscription = Subscription("billing", cache=MemoryCache(), settings=settings)
        return [await subscription.execute(Delivery("a", b"p"), pay, "a") for _ in range(attempts)]

    *_, last = asyncio.run(run())
    assert (last.attempt, last.reason) == (attempts, "ran into the time-out, and was rolled back")
    assert last.action is (Action.DEAD_LETTER if attempts == 2 else Action.REDELIVER)
    assert (place.effects(), place.markers()) == ([], [])


@pytest.mark.parametrize("place", ["asyncpg", "aiosqlite"], indirect=True)
def test_a_time_out_after_commit_is_unknown(place: Place) -> None:
    @billing.transaction(async_sessionmaker(place.engine))
    async def pay(payload: str, session: AsyncSession) -> None:
        await session.execute(EFFECT, {"what": payload})

    other = Inbox("ledger")

    @other.transaction(async_sessionmaker(place.engine))
    async def book(payload: str, session: AsyncSession) -> None:
        await asyncio.Event().wait()

    async def both(payload: str) -> None:
        await pay(payload)
        await book(payload)

    async def run(timeout: float) -> Begun:
        subscription = Subscription(
            "billing", cache=MemoryCache(), settings=SubscriptionSettings(attempt_timeout=timeout)
        )
        return await subscription.execute(Delivery("a", b"p"), both, "a")

    for timeout in (0.5, 2, 8, 32):  # on a slow machine it runs out before the first COMMIT
        begun = asyncio.run(run(timeout))
        if place.effects():
            break
    assert (begun.action, begun.reason) == (Action.REDELIVER, "ran into attempt_timeout")
    assert place.effects() == ["a"]


def test_a_handler_whose_annotations_contradict_its_places_is_refused() -> None:
    class Payment: ...

    def turned_round(session: Session, payload: dict[str, Any]) -> None: ...

    def context_first(payload: dict[str, Any], context: Payment, session: Session) -> None: ...

    async def of_asyncio(session: AsyncSession, payload: Payment) -> None: ...

    handlers: list[Any] = [turned_round, context_first]
    for handler in handlers:
        for batch in (False, True):
            with pytest.raises(
                TypeError, match=f"{handler.__name__} gets the payload as its first.*: change their places"
            ):
                billing.transaction(sessionmaker(), batch=batch)(handler)
        with pytest.raises(TypeError, match="change their places"):
            Inbox("ledger", order="contiguous").transaction(sessionmaker())(handler)
    with pytest.raises(TypeError, match="change their places"):
        billing.transaction(async_sessionmaker())(of_asyncio)  # type: ignore[arg-type]  # a type checker sees it, too


def test_whatever_may_be_a_session_is_one() -> None:
    class Own(Session): ...

    def own(payload: Any, session: Own) -> None: ...

    def either(payload: Any, session: "Session | AsyncSession") -> None: ...

    def anything(payload: Any, session: object) -> None: ...

    def unreadable(payload: Any, session: "NotHere") -> None: ...  # type: ignore[name-defined]  # noqa: F821  # that is the case

    handlers: list[Any] = [own, either, anything, unreadable, lambda payload, session: None]
    for handler in handlers:
        billing.transaction(sessionmaker())(handler)
