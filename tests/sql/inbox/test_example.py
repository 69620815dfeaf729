"""examples/payments.py does what it promises, also after its process was killed."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import aio_pika
import httpx
import psycopg
import pytest
from aio_pika.abc import HeadersType

from testing.postgresql import PostgreSQLServer
from testing.uvicorn_app import served_by_uvicorn
from testing.waiting import until, wait_until

EXAMPLES = Path(__file__).parents[3] / "examples"


def running(database: str, rabbitmq: str) -> AbstractContextManager[httpx.Client]:
    """The example as a process, and a client of it."""
    given = {"DATABASE": database, "RABBITMQ": rabbitmq}
    return served_by_uvicorn("payments:app", EXAMPLES, ready="/balance", **given)


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
        assert client.post("/payments", json={"amount": 1}).status_code == 400
        again = client.post("/payments", json={"amount": 31}, headers={"Idempotency-Key": "order-3"})
        assert again.status_code == 422, "another payload under a used key is not accepted"
        for wrong in ({"sum": 1}, {"amount": 0}, {"amount": "x"}, {"amount": 10**30}):
            refused = client.post("/payments", json=wrong, headers={"Idempotency-Key": f"wrong {wrong}"[:40]})
            assert refused.status_code in (400, 422), "it would fail after its 202"


@contextmanager
def away(postgresql: PostgreSQLServer, name: str) -> Iterator[None]:
    """The database takes no connection, and has ended those that there were."""
    postgresql.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    postgresql.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
    yield
    postgresql.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")


@pytest.mark.timeout(300)
def test_messages_without_a_header_and_a_database_that_restarts_stop_nothing(
    postgresql: PostgreSQLServer, rabbit_broker_url: str
) -> None:
    name = postgresql.database()

    async def publish_wrong() -> None:
        async with await aio_pika.connect(rabbit_broker_url) as broker:  # a robust one answers from memory
            channel = await broker.channel()
            wrong: list[HeadersType] = [{}, {"Idempotency-Key": 7}, {"Idempotency-Key": ""}]
            for headers in wrong * 10:
                await channel.default_exchange.publish(aio_pika.Message(b"{}", headers=headers), "payments")

            async def dead() -> bool:
                queue = await channel.declare_queue("payments.dead", passive=True)
                return (queue.declaration_result.message_count or 0) >= 30

            await until(dead, "all are in the queue of the dead")

    with running(postgresql.url(name, "asyncpg"), rabbit_broker_url) as client:
        before = client.get("/balance").json()
        asyncio.run(publish_wrong())
        with psycopg.connect(postgresql.url(name, "psycopg").replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()",
                (name,),
            )
        assert client.get("/balance").status_code == 200
        key = {"Idempotency-Key": f"after-{name}"}
        with away(postgresql, name):
            assert client.get("/balance").status_code == 503
            assert client.post("/payments", json={"amount": 5}, headers=key).status_code == 202
        wait_until(lambda: client.get("/balance").json() == before + 5, "it is booked")


@pytest.mark.parametrize(
    ("missing", "word"),
    [
        ("aio_pika", "aio_pika is not installed: pip install"),
        ("asyncpg", "asyncpg is not installed: pip install"),
        ("sqlalchemy", "sqlalchemy is not installed: pip install"),
        ("", "RABBITMQ is not set: "),
    ],
)
def test_without_what_it_needs_it_says_so_in_one_line(missing: str, word: str) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; import payments"
    environment = os.environ | {"DATABASE": "postgresql+asyncpg://x", "RABBITMQ": ""}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=EXAMPLES, env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert word in done.stderr
