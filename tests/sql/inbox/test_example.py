"""examples/payments.py does what it promises, also after its process was killed."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from testing.postgresql import PostgreSQLServer
from testing.servers import bound, free_port
from testing.waiting import wait_until

EXAMPLES = Path(__file__).parents[3] / "examples"


@contextmanager
def running(database: str, rabbitmq: str) -> Iterator[httpx.Client]:
    """The example as a process, and a client of it; killed at the end."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "payments:app", "--port", str(port), "--log-level", "warning"]
    environment = os.environ | {"DATABASE": database, "RABBITMQ": rabbitmq}
    process = subprocess.Popen(bound(*command), cwd=EXAMPLES, env=environment, stderr=subprocess.PIPE, text=True)

    def serves() -> bool:
        assert process.poll() is None, process.stderr and process.stderr.read()
        try:
            return client.get("/balance").status_code == 200
        except httpx.TransportError:
            return False

    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False, verify=False) as client:
            wait_until(serves, "the example serves")
            yield client
    finally:
        process.kill()
        process.communicate()


@pytest.mark.timeout(300)
def test_each_payment_is_booked_once(postgresql: PostgreSQLServer, rabbit_broker_url: str) -> None:
    database = postgresql.url(postgresql.database(), "asyncpg")

    def pay(client: httpx.Client, key: str, amount: int) -> None:
        answer = client.post("/payments", json={"amount": amount}, headers={"Idempotency-Key": key})
        assert answer.status_code == 202, answer.text

    def books(client: httpx.Client, amount: int) -> None:
        wait_until(lambda: client.get("/balance").json() >= amount, "it is booked")
        assert client.get("/balance").json() == amount

    with running(database, rabbit_broker_url) as client:
        for _ in range(3):
            pay(client, "order-1", 30)
        books(client, 30)
    with running(database, rabbit_broker_url) as client:  # whose hook knows nothing of the first
        for key, amount in (("order-1", 30), ("order-2", 12), ("order-1", 30), ("order-3", 8)):
            pay(client, key, amount)
        books(client, 50)
        assert client.post("/payments", json={"amount": 1}).status_code == 422
