"""The connection breaks during COMMIT, before the server has it or after: nobody knows, and the next delivery's marker shows it.

Rules of docs/contract.md: R12.14.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy.orm import Session

from oncegate import Action, Begun, Delivery, Subscription
from oncegate.sql import CommitUnknown, Inbox
from testing.postgresql import PostgreSQLServer
from testing.proxy import BreakingProxy, Then
from tests.sql.conftest import ON_POSTGRESQL
from tests.sql.held import PATIENT
from tests.sql.places import EFFECT, Place

billing = Inbox("billing", wait_timeout=PATIENT)  # the server may notice late that a connection is gone
BREAKS: list[tuple[Then, int]] = [("drop", 2), ("cut", 1)]
"""Before the server has it, after; and how often the handler is called."""
pytestmark = [
    pytest.mark.parametrize("place", ON_POSTGRESQL, indirect=True),
    pytest.mark.parametrize(("then", "calls"), BREAKS),
]


def deliver_twice(
    place: Place, server: PostgreSQLServer, then: Then, handler_of: Callable[[Place], Callable[..., Any]]
) -> list[Begun]:
    """What the hook makes of two deliveries through a proxy, which breaks the first one's COMMIT."""

    async def run(proxy: BreakingProxy, handler: Callable[..., Any]) -> list[Begun]:
        subscription = Subscription("billing", cache="memory://")
        proxy.watch(b"COMMIT", then)
        done = [await subscription.execute(Delivery("a", b"5"), handler, "a") for _ in range(2)]
        assert not proxy.is_watching
        await subscription.drain()
        return done

    with BreakingProxy(server.port) as proxy:
        behind = type(place)(place.url.replace(f":{server.port}/", f":{proxy.port}/"))
        behind.execute("SELECT 1")
        return asyncio.run(run(proxy, handler_of(behind)))


def test_its_effect_is_there_once(place: Place, postgresql: PostgreSQLServer, then: Then, calls: int) -> None:
    called: list[Any] = []

    def pay(session: Session, payload: Any) -> Any:
        called.append(payload)
        session.execute(EFFECT, {"what": payload})
        return {"paid": payload}

    lost, again = deliver_twice(place, postgresql, then, lambda behind: behind.handler(billing, pay))
    assert isinstance(lost.execution.raised, CommitUnknown), lost.execution.raised
    assert (lost.action, again.action) == (Action.REDELIVER, Action.ACKNOWLEDGE)
    assert again.execution.returned == {"paid": "a"}
    assert len(called) == calls
    assert place.effects() == ["a"]


def test_without_the_inbox_it_is_there_as_often_as_it_was_committed(
    place: Place, postgresql: PostgreSQLServer, then: Then, calls: int
) -> None:
    def handler_of(behind: Place) -> Callable[..., Any]:
        return lambda payload: behind.run(lambda session: session.execute(EFFECT, {"what": payload})) and None

    _, again = deliver_twice(place, postgresql, then, handler_of)
    assert again.action is Action.ACKNOWLEDGE
    assert len(place.effects()) == 3 - calls
