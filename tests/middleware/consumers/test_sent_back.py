"""A delivery that is sent back because nothing could be begun says why: a missing table, a database that is away.

Rules of docs/contract.md: R12.37.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session

from oncegate import Action, Delivery, NotProcessed, Subscription
from oncegate.middleware.consumers.handlers import sent_back
from oncegate.sql import Inbox, SequenceEarly
from oncegate.sql.inbox.create import create


def logged() -> Any:
    """What has been logged lately, and isn't logged again."""
    return sent_back._logged


@pytest.fixture(autouse=True)
def nothing_was_logged() -> Iterator[None]:
    logged().clear()
    yield
    logged().clear()


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each for each in caplog.messages if "sent back, nothing was begun" in each]


async def test_a_missing_table_is_one_line_with_what_to_do(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/shop.db")
    subscription = Subscription("ledger", cache="memory://")

    @Inbox("ledger").transaction(async_sessionmaker(engine))
    async def handle(body: bytes, session: AsyncSession) -> None: ...

    for number in range(20):
        begun = await subscription.execute(Delivery(f"k-{number}", b"{}"), handle, b"secret of the body")
        assert begun.action is Action.REDELIVER
        assert "there is no table oncegate_inbox" in begun.reason
    (line,) = lines(caplog)
    assert f"record {begun.record}" not in line
    assert "InboxMisused: there is no table oncegate_inbox" in line
    assert "oncegate inbox create" in line
    assert "secret" not in caplog.text
    await engine.dispose()


async def test_an_absent_database_is_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = create_async_engine("postgresql+asyncpg://nobody:secret@127.0.0.1:9/none")
    subscription = Subscription("ledger", cache="memory://")

    @Inbox("ledger").transaction(async_sessionmaker(engine))
    async def handle(body: bytes, session: AsyncSession) -> None: ...

    for number in range(5):
        begun = await subscription.execute(Delivery(f"k-{number}", b"{}"), handle, b"{}")
        assert begun.action is Action.REDELIVER
        assert begun.reason
    (line,) = lines(caplog)
    assert "InboxUnavailable: the database can't be reached" in line
    assert "secret" not in caplog.text
    await engine.dispose()


async def test_of_a_handler_s_own_error_the_kind_is_logged_and_the_text_is_the_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    subscription = Subscription("ledger", cache="memory://")

    def later() -> None:
        raise NotProcessed("card 4111 is in use")

    begun = await subscription.execute(Delivery("k", b"{}"), later)
    assert begun.reason == "card 4111 is in use"
    (line,) = lines(caplog)
    assert "NotProcessed" in line
    assert "4111" not in line


async def test_what_is_early_by_hand_is_seen_in_each_way_to_deliver(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its truth ends the transaction; a consumer that only sent it back would be silent, and fill the broker's window."""
    await asyncio.to_thread(create, f"sqlite:///{tmp_path}/shop.db", None)
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    ledger, subscription = Inbox("ledger", order="contiguous"), Subscription("ledger", cache="memory://")
    early = Delivery("k-2", b"{}", aggregate="account-7", sequence=2)

    def book() -> None:
        with Session(engine) as session:
            assert ledger.first(session, "k-2", aggregate="account-7", sequence=2)

    begun = await subscription.execute(early, book)
    assert (begun.action, "transaction parks it" in begun.reason) == (Action.REDELIVER, True)
    (line,) = lines(caplog)
    assert "SequenceEarly: record" in line
    logged().clear()

    async def by_once() -> None:
        async for attempt in subscription.once(early):
            async with attempt:
                book()

    with pytest.raises(SequenceEarly):
        await by_once()
    assert len(lines(caplog)) == 2
    engine.dispose()


@pytest.mark.interpreted
def test_the_same_cause_is_logged_once_in_a_while_and_another_one_at_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 100.0
    monkeypatch.setattr(sent_back, "monotonic", lambda: now)
    assert sent_back.log_sent_back("a", NotProcessed("x"))
    assert [sent_back.log_sent_back("b", NotProcessed("y")) for _ in range(3)] == [False] * 3
    assert sent_back.log_sent_back("c", type("Other", (NotProcessed,), {})("z"))
    now += sent_back.EVERY
    assert sent_back.log_sent_back("d", NotProcessed("x"))
    assert lines(caplog)[-1].endswith("NotProcessed (3 others since the last line)")
    assert not sent_back.log_sent_back("e", ValueError("x"))
