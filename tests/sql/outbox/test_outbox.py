"""Messages that are written in the transaction of what they tell.

Rules of docs/contract.md: R12.31.
"""

from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from oncegate.middleware.rules.errors import KeyInvalid
from oncegate.sql import Outbox, OutboxMisused, Sequences, VersionConflict
from tests.sql.places import Place, SyncPlace

orders = Outbox("orders")


def rows(place: Place, columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in place.execute(f"SELECT {columns} FROM oncegate_outbox ORDER BY id")]


def test_a_message_is_there_with_what_it_tells_of_or_not_at_all(place: Place) -> None:
    def order(session: Session, *, fails: bool) -> None:
        session.execute(text("INSERT INTO effects (what) VALUES ('order')"))
        assert orders.add(session, "payments", b"1", aggregate="a").sequence == 1
        if fails:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        place.run(lambda session: order(session, fails=True))
    assert (rows(place, "topic"), place.effects()) == ([], [])
    place.run(lambda session: order(session, fails=False))
    assert (rows(place, "topic, sequence, aggregate_id"), place.effects()) == ([("payments", 1, "a")], ["order"])


def test_what_is_given_stays_with_it(place: Place) -> None:
    def order(session: Session) -> None:
        keyed = orders.add(session, "payments", {"amount": 1}, key="k 1", headers={"x": "é"}, correlation="c")
        assert keyed == ("k 1", None)
        random = [orders.add(session, "payments", body).key for body in ("text", b"\x00")]
        assert len({str(UUID(key)) for key in random}) == 2

    place.run(order)
    assert [(bytes(body), headers) for body, headers in rows(place, "body, headers")] == [
        (b'{"amount":1}', '{"x":"é","content-type":"application/json"}'),
        (b"text", '{"content-type":"text/plain"}'),
        (b"\x00", None),
    ]
    assert rows(place, "key, correlation, dead, attempts")[0] == ("k 1", "c", False, 0)


def test_numbers_are_those_of_the_sequence_and_may_be_expected(place: Place) -> None:
    def order(session: Session) -> None:
        assert orders.add(session, "payments", b"", aggregate="a", expected=0).sequence == 1
        assert Sequences("orders").next(session, "a", expected=1) == 2
        assert orders.add(session, "payments", b"", aggregate="a", expected=2).sequence == 3
        assert Outbox("others").add(session, "payments", b"", aggregate="a").sequence == 1
        with pytest.raises(VersionConflict):
            orders.add(session, "payments", b"", aggregate="a", expected=2)

    place.run(order)
    assert rows(place, "outbox, sequence") == [("orders", 1), ("orders", 3), ("others", 1)]
    assert place.execute("SELECT count(DISTINCT aggregate) FROM oncegate_outbox")[0][0] == 2


@pytest.mark.parametrize("place", ["asyncpg", "aiosqlite"], indirect=True)
async def test_sessions_and_connections_of_asyncio_await_it(place: Place) -> None:
    engine = create_async_engine(place.url)
    async with engine.begin() as connection:
        assert (await orders.add(connection, "payments", b"", aggregate="a", key=1)) == ("1", 1)
        assert (await orders.add(connection, "payments", b"")).sequence is None
    await engine.dispose()


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"topic": ""}, ValueError),
        ({"topic": "a\nb"}, ValueError),
        ({"body": object()}, TypeError),
        ({"aggregate": "a "}, ValueError),
        ({"aggregate": "\ud800"}, ValueError),
        ({"aggregate": 1}, TypeError),
        ({"expected": 1}, ValueError),
        ({"key": "é"}, KeyInvalid),
        ({"key": ""}, KeyInvalid),
        ({"headers": {"Idempotency-Key": "k"}}, ValueError),
        ({"headers": {"x": "a\r\nb"}}, ValueError),
        ({"correlation": " "}, ValueError),
    ],
)
def test_what_no_broker_would_carry_is_refused(given: dict[str, Any], error: type[Exception]) -> None:
    place = SyncPlace("sqlite://")
    with pytest.raises(error):
        place.run(lambda session: orders.add(session, given.pop("topic", "t"), given.pop("body", b""), **given))


def test_without_the_table_it_says_how_to_make_it() -> None:
    with pytest.raises(OutboxMisused, match="oncegate outbox create"):
        SyncPlace("sqlite://").run(lambda session: orders.add(session, "t", b""))
