"""Refusals by caller in a gateway of several processes: any of them adds up all, and one that dies loses nothing.

Rules of docs/contract.md: R11.64.
"""

import os
import signal
from typing import Any

import httpx

from oncegate.app.settings.admin_tokens import AdminToken
from testing.caller import fresh_key
from testing.gateway import DEADLINE, Gateway
from testing.ledger import Ledger
from testing.servers import RedisServer
from testing.waiting import wait_until
from tests.system.conftest import Start

TOKEN = "oncegate-a-token-that-reads"
TRIES = 30
"""Connections of their own, so that each worker gets some."""


def refused(gateway: Gateway) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {TOKEN}"}
    found: dict[str, Any] = httpx.get(
        f"{gateway.url}/_oncegate/callers/?minutes=60", headers=headers, timeout=DEADLINE
    ).json()
    return found


def pay(gateway: Gateway, key: str, body: bytes) -> tuple[int, str]:
    headers = {"idempotency-key": key, "authorization": "Bearer a"}
    answer = httpx.post(f"{gateway.url}/payments", headers=headers, content=body, timeout=DEADLINE)
    return answer.status_code, "" if answer.status_code < 400 else str(answer.json()["record"])


def test_each_worker_counts_and_any_of_them_adds_up(start: Start, ledger: Ledger, redis_server: RedisServer) -> None:
    tokens = [AdminToken.of("rita", TOKEN, writes=False).setting()]
    gateway = start(ledger.url, redis_server.url, namespace=fresh_key(), workers=3, admin_tokens=tokens).ready()
    key = fresh_key()
    assert pay(gateway, key, b"a") == (201, "")
    statuses = [pay(gateway, key, b"b") for _ in range(TRIES)]
    assert {status for status, _ in statuses} == {422}
    caller = statuses[0][1].partition(":")[2]
    listings = [refused(gateway) for _ in range(TRIES)]
    assert len({each["process"] for each in listings}) > 1, "several workers have answered"
    for found in listings:
        assert found["refused"] == TRIES
        (each,) = found["callers"]
        assert (each["caller"], each["routes"]) == (
            caller,
            [{"route": "*", "count": TRIES, "decisions": {"key-reused": TRIES}}],
        )
    victim = gateway.workers()[0]
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: len(found := gateway.workers()) == 3 and victim not in found, "it is replaced")
    assert {pay(gateway, key, b"b")[0] for _ in range(TRIES)} == {422}
    assert refused(gateway)["refused"] == 2 * TRIES
