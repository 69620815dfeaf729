"""The ids of a message as they may stand in a log: on one line, short, and never the key."""

from typing import Any
from uuid import UUID

import pytest

from oncegate import Delivery
from oncegate.middleware.consumers.delivery import MOST_CHARACTERS, origin_of
from tests.middleware.conftest import MakeSubscription


@pytest.mark.parametrize(
    ("identifier", "shown"),
    [
        ("m-1", "m-1"),
        (b"m-1", "m-1"),
        (b"\xff\n", "\\\\xff\\n"),
        ("a\r\nb\x1b[0m\u2028", "a\\r\\nb\\x1b[0m\\u2028"),
        (7, "7"),
        pytest.param(10**5000, "", id="an integer of 5000 digits"),
        (UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        ("x" * 1000, "x" * MOST_CHARACTERS),
        (object(), ""),
        (None, ""),
    ],
)
def test_an_id_is_shown_on_one_short_line(identifier: Any, shown: str) -> None:
    origin = origin_of(Delivery("key", message_id=identifier, correlation=identifier))
    assert (origin.message_id, origin.correlation) == (shown, shown)


@pytest.mark.parametrize("key", ["order-7", b"order-7", 7, UUID(int=7)])
def test_a_key_is_not_shown_as_an_id(key: Any) -> None:
    assert origin_of(Delivery(key, message_id=key, correlation=key)).line == ""
    assert origin_of(Delivery(key, message_id=str(key) + "!")).line != ""


async def test_every_decision_brings_them(subscribe: MakeSubscription, caplog: pytest.LogCaptureFixture) -> None:
    ledger = subscribe("ledger", max_attempts=1)
    for key in ("a", "a", None, "\n"):
        begun = await ledger.begin(Delivery(key, message_id="m-1", correlation="c-1"))
        assert begun.origin == ("m-1", "c-1")
        if begun.run:
            await begun.execution.fail("no")
    lines = [each.getMessage() for each in caplog.records]
    assert lines
    assert {line.partition(": ")[0].partition(", ")[2] for line in lines} == {"message m-1, correlation c-1"}, lines
