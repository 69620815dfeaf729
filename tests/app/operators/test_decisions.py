"""``decisions/``: what requests were answered with in the last minutes, counted by all workers, at no request's cost.

Rules of docs/contract.md: R11.40.
"""

import json
from typing import Any

import httpx
import pytest

from oncegate.app.telemetry import recent
from oncegate.app.telemetry.metrics import Metrics
from oncegate.app.telemetry.recent import MOST_MINUTES, RecentDecisions
from oncegate.cache.record import State
from oncegate.middleware.admission.observe import Observation
from testing.served import served
from testing.upstreams import OK, Upstream, answering
from tests.app.described import as_described

TOKEN = "the-operators-token"


class Clock:
    """The monotonic clock of what is recent."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(recent, "monotonic", made)
    return made


def answered(metrics: Metrics, decision: str, method: str = "POST") -> None:
    metrics.observed(Observation(decision, 200, 1, "", "/payments", method, 0.1))


def counted(found: dict[str, Any]) -> dict[str, int]:
    return {f"{row['route']} {row['decision']}": row["count"] for row in found["decisions"]}


async def test_it_counts_what_came_since_whichever_worker_counted_it(clock: Clock) -> None:
    metrics = Metrics([("/payments", ("POST", "PATCH")), ("*", ("POST",))], workers=2)
    metrics.enter(0)
    recently = RecentDecisions(metrics)
    answered(metrics, "first")
    await recently.note()
    for minute in range(10):
        clock.now += 60
        metrics.enter(minute % 2)
        answered(metrics, "first")
        answered(metrics, "replayed", "PATCH" if minute % 2 else "POST")
        await recently.note()
    clock.now += 1
    answered(metrics, "in-flight")
    found = await recently.listing(5)
    assert counted(found) == {"/payments first": 5, "/payments replayed": 5, "/payments in-flight": 1}
    assert found["seconds"] == 301
    assert counted(await recently.listing(1)) == {
        "/payments first": 1,
        "/payments replayed": 1,
        "/payments in-flight": 1,
    }
    whole = await recently.listing(60)
    assert (whole["seconds"], counted(whole)["/payments first"]) == (601, 10)


async def test_it_counts_what_became_of_attempts(clock: Clock) -> None:
    metrics = Metrics([("/payments", ("POST",)), ("*", ("POST",))])
    recently = RecentDecisions(metrics)
    metrics.attempt_settled("/payments", State.UNKNOWN, 0.1)
    await recently.note()
    clock.now += 60
    for state in (State.UNKNOWN, State.UNKNOWN, State.SUCCEEDED, None):
        metrics.attempt_settled("/payments", state, 0.1)
    assert (await recently.listing(1))["outcomes"] == [
        {"route": "/payments", "outcome": "unknown", "count": 2},
        {"route": "/payments", "outcome": "released", "count": 1},
        {"route": "/payments", "outcome": "succeeded", "count": 1},
    ]


async def test_it_is_bounded(clock: Clock) -> None:
    metrics = Metrics([("/payments", ("POST",))])
    recently = RecentDecisions(metrics)
    for _ in range(3 * MOST_MINUTES):
        answered(metrics, "first")
        await recently.note()
        clock.now += 60
    assert len(recently._read) == MOST_MINUTES + 1
    assert counted(await recently.listing(MOST_MINUTES)) == {"/payments first": MOST_MINUTES - 1}


async def test_the_page_is_of_this_gateway_and_for_operators() -> None:
    async with Upstream(answering(OK)) as upstream, served(upstream.url, admin_token=TOKEN) as (client, _):

        async def pay(key: str) -> None:
            assert (await client.post("/payments", content=b"{}", headers={"idempotency-key": key})).status_code == 200

        async def get(status: int = 200, token: str = TOKEN, **query: Any) -> httpx.Response:
            headers = {"authorization": f"Bearer {token}"}
            answer = as_described(await client.get("/_oncegate/decisions/", params=query, headers=headers))
            assert answer.status_code == status
            return answer

        assert (await get()).json()["decisions"] == []
        for key in ("k-1", "k-1", "k-2"):
            await pay(key)
        found = (await get(minutes=1)).json()
        assert counted(found) == {"* first": 2, "* replayed": 1}
        assert found["decisions"][0]["mode"] == "enforced"
        assert found["outcomes"] == [{"route": "*", "outcome": "succeeded", "count": 2}]
        assert "k-1" not in json.dumps(found)
        await get(401, "wrong")
        for wrong in (0, MOST_MINUTES + 1, "many"):
            await get(400, minutes=wrong)
