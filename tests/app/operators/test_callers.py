"""``callers/``: who reuses keys, and who gets 400, 409, 422 and 429, by caller's digest and route; nobody else is counted.

Rules of docs/contract.md: R11.64.
"""

import asyncio
import json
from typing import Any

import httpx
import pytest

from oncegate.middleware.rules.keys.key import caller_of_id
from testing.served import served
from testing.upstreams import OK, Peer, Upstream, answering
from testing.waiting import until
from tests.app.described import as_described

TOKEN = "the-operators-token"
ALICE, BOB = "Bearer alice-s-own-credential", "Bearer bob-s-own-credential"
Counts = dict[tuple[str | None, str], dict[str, int]]


class Paying:
    """Requests of callers to a gateway, and what it says of those whom it has refused."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def pay(self, caller: str, key: str, status: int, body: bytes = b"{}", path: str = "/payments") -> Any:
        headers = {"authorization": caller} | ({"idempotency-key": key} if key else {})
        answer = await self._client.post(path, content=body, headers=headers)
        assert answer.status_code == status, answer.text
        return answer

    async def page(self, status: int = 200, token: str = TOKEN, **query: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {token}"}
        answer = as_described(await self._client.get("/_oncegate/callers/", params=query, headers=headers))
        assert answer.status_code == status
        return answer

    async def refused(self) -> Counts:
        found = (await self.page()).json()
        return {(each["caller"], row["route"]): row["decisions"] for each in found["callers"] for row in each["routes"]}


async def test_who_is_answered_is_not_counted_and_who_is_refused_is() -> None:
    routes = [{"path": "/payments"}, {"path": "/refunds", "on_missing_key": "reject"}]
    async with (
        Upstream(answering(OK)) as upstream,
        served(upstream.url, admin_token=TOKEN, routes=routes, new_keys_per_caller="3/h") as (client, _),
    ):
        there = Paying(client)
        await there.pay(ALICE, "k-1", 200)
        await there.pay(ALICE, "k-1", 200)
        await there.pay(ALICE, "", 200)
        assert (await client.get("/payments")).status_code == 200
        assert (await there.page()).json()["refused"] == 0, "a first request, a replay, a pass-through"
        record = (await there.pay(ALICE, "k-1", 422, b'{"other": 1}')).json()["record"]
        alice = caller_of_id(record)
        assert await there.refused() == {(alice, "/payments"): {"key-reused": 1}}
        await there.pay(ALICE, "", 400, path="/refunds")
        await there.pay(ALICE, "k" * 300, 400)
        await there.pay(BOB, "k-1", 200)
        bob = caller_of_id((await there.pay(BOB, "k-1", 422, b'{"other": 1}')).json()["record"])
        await there.pay(BOB, "k-2", 200)
        await there.pay(BOB, "k-3", 200)
        await there.pay(BOB, "k-4", 429)
        await there.pay(BOB, "k-5", 429)
        found = await there.page(minutes=1, limit=1)
        assert found.json()["refused"] == 6
        assert found.json()["others"] == 3
        assert await there.refused() == {
            (alice, "/payments"): {"key-reused": 1, "key-invalid": 1},
            (alice, "/refunds"): {"key-missing": 1},
            (bob, "/payments"): {"key-reused": 1, "too-many-keys": 2},
        }
        assert ALICE.split()[1] not in found.text
        assert "k-1" not in json.dumps(found.json())


async def test_in_flight_is_counted_of_the_second_and_a_warned_mismatch_of_its_replay() -> None:
    came, goes_on = asyncio.Event(), asyncio.Event()

    async def held(peer: Peer) -> None:
        await peer.request()
        came.set()
        await goes_on.wait()
        await peer.send(OK)

    async with (
        Upstream(held) as upstream,
        served(upstream.url, admin_token=TOKEN, routes=[{"path": "/warned", "on_mismatch": "warn"}]) as (client, _),
    ):
        there = Paying(client)
        first = asyncio.create_task(there.pay(ALICE, "k-1", 200, path="/warned"))
        await came.wait()
        assert await there.refused() == {}
        alice = caller_of_id((await there.pay(ALICE, "k-1", 409, path="/warned")).json()["record"])
        assert await there.refused() == {(alice, "/warned"): {"in-flight": 1}}
        goes_on.set()
        await first
        await there.pay(ALICE, "k-1", 200, path="/warned")
        await there.pay(ALICE, "k-1", 200, b'{"other": 1}', path="/warned")
        assert await there.refused() == {(alice, "/warned"): {"in-flight": 1, "mismatch-warned": 1}}


async def test_a_warned_mismatch_that_is_refused_all_the_same_counts_once() -> None:
    routes = [{"path": "/once", "on_mismatch": "warn", "raise_on_duplicate": True}]
    async with (
        Upstream(answering(OK)) as upstream,
        served(upstream.url, admin_token=TOKEN, routes=routes) as (client, _),
    ):
        there = Paying(client)
        await there.pay(ALICE, "k-1", 200, path="/once")
        alice = caller_of_id((await there.pay(ALICE, "k-1", 409, b'{"other": 1}', path="/once")).json()["record"])
        assert await there.refused() == {(alice, "/once"): {"duplicate": 1}}


async def test_what_is_only_observed_is_refused_to_nobody() -> None:
    async with (
        Upstream(answering(OK)) as upstream,
        served(upstream.url, admin_token=TOKEN, idempotency={"enforce": 0, "shadow": True}) as (client, gateway),
    ):
        there = Paying(client)
        for body in (b"{}", b'{"other": 1}'):
            await there.pay(ALICE, "k-1", 200, body)
        counted = gateway.lasting.recent

        async def is_observed() -> bool:
            return any(decision == "key-reused" for _, decision, _ in await counted.counts())

        await until(is_observed, "the reuse was observed")
        assert (await there.page()).json()["refused"] == 0


@pytest.mark.parametrize("query", [{"minutes": 0}, {"minutes": 61}, {"limit": 0}, {"limit": 501}, {"limit": "many"}])
async def test_it_is_for_operators_and_bounded(query: dict[str, Any]) -> None:
    async with Upstream(answering(OK)) as upstream, served(upstream.url, admin_token=TOKEN) as (client, _):
        there = Paying(client)
        await there.page(400, **query)
        await there.page(401, "wrong")
