"""FastStream with an inbox: one effect in the database, committed before its reply is sent, which a duplicate sends again.

Rules of docs/contract.md: R12.14.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from faststream import Context
from faststream.exceptions import AckMessage, RejectMessage
from faststream.middlewares import BaseMiddleware
from faststream.response import Response
from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from oncegate.middleware.consumers.begun import Begun
from oncegate.sql import Inbox
from testing.waiting import until
from tests.brokers.benches import REQUESTS, NatsRequests, RabbitRequests, RedisRequests
from tests.brokers.conftest import Consumers, recorded, settled
from tests.brokers.consumers import Effects, subscription
from tests.brokers.paying import POINTS
from tests.brokers.test_kills import Restarting
from tests.sql.places import EFFECT, SyncPlace

billing = Inbox("billing", wait_timeout=60)
InSession = Annotated[AsyncSession, Context("session")]


@pytest.fixture(params=["rabbit", "nats"])
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[RabbitRequests | NatsRequests | RedisRequests]:
    bench: Any = REQUESTS[request.param](request.getfixturevalue(f"{request.param}_broker_url"))
    await bench.open()
    yield bench
    await bench.close()


@pytest.fixture
async def sessions(place: SyncPlace) -> AsyncIterator[Any]:
    engine = create_async_engine(place.url.replace("psycopg", "asyncpg"))
    yield async_sessionmaker(engine)
    await engine.dispose()


async def came(bench: Any, *replies: Any) -> None:
    """Waits until these replies, and no others, have come."""

    async def found() -> bool:
        return len(await bench.replies()) >= len(replies)

    await until(found)
    assert [read(reply) for reply in await bench.replies()] == list(replies)


def read(reply: str) -> Any:
    return json.loads(reply) if reply[:1] in "{[" and reply else reply


@pytest.mark.parametrize("bench", [*REQUESTS], indirect=True)
@pytest.mark.timeout(300)  # it starts five processes, on a machine that may be busy
async def test_one_effect_and_each_reply_wherever_the_consumer_dies(
    bench: Any, redis_url: str, effects: Effects, place: SyncPlace
) -> None:
    """SIGKILL before COMMIT, between COMMIT and the reply, between that and the record, and before the acknowledgement."""
    one = subscription(redis_url, bench.name)
    database = place.url.replace("psycopg", "asyncpg")
    arguments = [bench.kind, bench.url, bench.name, redis_url, str(effects.path), database]
    process = Restarting(*arguments, module="tests.brokers.paying")
    try:
        for number, point in enumerate(POINTS, 1):
            key = point.replace(" ", "-")
            await bench.publish({"key": key, "die": point})

            async def done(number: int = number, key: str = key) -> bool:
                again = process.kills == number and effects.deliveries().get(key, 0) >= 2
                return again and await recorded(one, key) and not await bench.left()

            await process.until(done)
        process.stop()
    finally:
        process.end()
    await one.cache.close()
    keys = [point.replace(" ", "-") for point in POINTS]
    assert place.effects() == sorted(keys)
    replies = [read(reply)["paid"] for reply in await bench.replies()]
    assert list(dict.fromkeys(replies)) == keys
    again = [replies.count(key) for key in keys]
    # NATS' client writes later than it says: a reply may go down with its process.
    assert again == [1, 1, 2, 2] or (bench.kind == "nats" and again[:2] == [1, 1] and max(again) <= 2)
    await settled(bench)


async def test_a_duplicate_sends_the_kept_reply_again(
    bench: Any, consumers: Consumers, place: SyncPlace, sessions: Any
) -> None:
    """Whether the hook's record knows it or, that being lost, the inbox."""

    async def handle(body: dict[str, Any], session: InSession) -> Any:
        await session.execute(EFFECT, {"what": body["key"]})
        return {"object": {"paid": "object"}, "text": "paid text", "bare": Response({"paid": "bare"})}.get(body["key"])

    expected: list[Any] = [{"paid": "object"}, "paid text", {"paid": "bare"}, ""]
    for times, namespace in enumerate(("first", "first", "lost"), 1):
        await consumers.start(handle, inbox=billing, sessions=sessions, namespace=f"{bench.name}-{namespace}")
        for number, key in enumerate(("object", "text", "bare", "none"), 1):
            await bench.publish({"key": key})
            await came(bench, *expected * (times - 1), *expected[:number])
        await consumers.end()
    await settled(bench)
    assert place.effects() == ["bare", "none", "object", "text"]


async def test_no_reply_tells_of_what_was_rolled_back(
    bench: Any, consumers: Consumers, place: SyncPlace, sessions: Any
) -> None:
    """The first COMMIT fails, by a constraint that is looked at there."""
    place.execute("CREATE TABLE paid (what TEXT UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    attempts: list[int] = []

    async def handle(body: dict[str, Any], session: InSession) -> str:
        attempts.append(1)
        for _ in range(2 if len(attempts) == 1 else 1):
            await session.execute(text("INSERT INTO paid VALUES (:what)"), {"what": body["key"]})
        return f"paid at attempt {len(attempts)}"

    found: list[Begun] = []
    await consumers.start(handle, inbox=billing, sessions=sessions, on_begun=found.append)
    await bench.publish({"key": "one"})
    await came(bench, "paid at attempt 2")
    await consumers.end()
    await settled(bench)
    assert isinstance(found[0].execution.raised, IntegrityError)
    assert len(place.execute("SELECT * FROM paid")) == len(place.markers()) == 1


async def test_what_a_handler_raises_is_rolled_back_and_tried_again(
    bench: Any, consumers: Consumers, place: SyncPlace, sessions: Any
) -> None:
    attempts: list[str] = []

    async def handle(body: dict[str, Any], session: InSession) -> str:
        attempts.append(body["key"])
        await session.execute(EFFECT, {"what": body["key"]})
        if body["key"] == "reject":
            raise RejectMessage
        if body["key"] == "acknowledge":
            raise AckMessage
        if len(attempts) == 1:
            raise ZeroDivisionError
        return "paid"

    await consumers.start(handle, inbox=billing, sessions=sessions)
    for key in ("fails", "acknowledge", "reject"):
        await bench.publish({"key": key})
        await until(lambda key=key: attempts.count(key) == (2 if key == "fails" else 1))  # type: ignore[misc]  # one of its own
    await until(bench.dead)
    await bench.publish({"key": "acknowledge"})  # a success without a reply: a duplicate has none either
    await came(bench, "paid")
    await consumers.end()
    await settled(bench)
    assert place.effects() == ["acknowledge", "fails"]
    await came(bench, "paid")


async def test_a_reply_that_can_not_be_sent_is_sent_by_the_next_delivery(
    bench: Any, consumers: Consumers, place: SyncPlace, sessions: Any
) -> None:
    """Of the first delivery, and of a duplicate. Nothing is acknowledged meanwhile, and nothing done again."""
    fails = [True, False, True, False]

    class Unsent(BaseMiddleware[Any, Any]):
        async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
            if fails.pop(0):
                raise ConnectionError
            return await call_next(cmd)

    async def handle(body: dict[str, Any], session: InSession) -> str:
        await session.execute(EFFECT, {"what": body["key"]})
        return "paid"

    await consumers.start(handle, inbox=billing, sessions=sessions, before=(Unsent,))
    await bench.publish({"key": "one"})
    await came(bench, "paid")
    await bench.publish({"key": "one"})
    await came(bench, "paid", "paid")
    await consumers.end()
    await settled(bench)
    assert (place.effects(), fails, await bench.dead()) == (["one"], [], [])


async def test_a_handler_with_an_inbox_of_its_own(
    bench: Any, consumers: Consumers, place: SyncPlace, sessions: Any, tmp_path: Path
) -> None:
    """A plain function, and a coroutine function, as `Inbox.transaction` makes them; here too a lost record does no harm."""
    engine = create_engine(place.url, poolclass=NullPool)

    @billing.transaction(sessionmaker(engine))
    def plain(body: dict[str, Any], session: Session) -> str:
        session.execute(EFFECT, {"what": body["key"]})
        return f"paid {body['key']}"

    @billing.transaction(sessions)
    async def with_asyncio(body: dict[str, Any], session: AsyncSession) -> str:
        await session.execute(EFFECT, {"what": body["key"]})
        return f"paid {body['key']}"

    expected: list[str] = []
    for handler in (plain, with_asyncio):
        for namespace in (f"{handler.__name__}-first", f"{handler.__name__}-lost"):
            await consumers.start(handler, namespace=f"{bench.name}-{namespace}")
            await bench.publish({"key": handler.__name__})
            expected.append(f"paid {handler.__name__}")
            await came(bench, *expected)
            await consumers.end()
    await settled(bench)
    assert place.effects() == ["plain", "with_asyncio"]


async def test_a_message_without_a_key_runs_without_a_marker_and_says_so(
    bench: Any, consumers: Consumers, place: SyncPlace, sessions: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(body: dict[str, Any], session: InSession) -> str:
        await session.execute(EFFECT, {"what": body["key"]})
        return "paid"

    inbox = Inbox("billing")
    await consumers.start(handle, inbox=inbox, sessions=sessions)
    await bench.publish({"key": "none"}, {})
    await came(bench, "paid")
    await consumers.end()
    await settled(bench)
    assert (place.effects(), place.markers(), inbox.unmarked) == (["none"], [], 1)
    assert "without a marker" in caplog.text


async def test_a_time_out_is_rolled_back_and_a_failure(
    bench: Any, consumers: Consumers, place: SyncPlace, sessions: Any
) -> None:
    attempts: list[int] = []

    async def handle(body: dict[str, Any], session: InSession) -> str:
        attempts.append(1)
        await session.execute(EFFECT, {"what": body["key"]})
        if len(attempts) == 1:
            await asyncio.Event().wait()
        return "paid"

    found: list[Begun] = []
    await consumers.start(
        handle, inbox=billing, sessions=sessions, on_begun=found.append, lease=3, attempt_timeout=3, max_attempts=0
    )
    await bench.publish({"key": "one"})
    await came(bench, "paid")
    await consumers.end()
    await settled(bench)
    assert found[0].execution.begun.reason == "ran into the time-out, and was rolled back"
    assert place.effects() == ["one"]
