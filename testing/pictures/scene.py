"""What the console is photographed at: two gateways, one of which was killed in three payments, and a worker that gave up."""

import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from oncegate.app.settings.admin_tokens import AdminToken
from testing.command_line import running
from testing.gateway import Gateway
from testing.ledger import Ledger, Reply
from testing.servers import RedisServer
from testing.waiting import PATIENCE, wait_until

TOKEN = "a-token-of-the-pictures"
LEASE = 2
PAID, REPLAYED, REUSED, LOST = 24, 7, 3, 3
HOPELESS, CLOSED = 12, 2
ROUTES = [
    {"path": "/payments", "on_missing_key": "reject"},
    {"path": "/refunds"},
    {"path": "/orders", "mode": "async", "on_missing_key": "reject"},
]
HANDLER = """
from oncegate import NotRetryable


def book(order, context):
    if order["currency"] == "XAU":
        raise NotRetryable(f"the bank does not know XAU (order {order['order']})")
    if order["account"] != 1:
        raise NotRetryable(f"account {order['account']} is closed")
    return {"booked": context.key}
"""


@contextmanager
def operated() -> Iterator[Gateway]:
    """The gateway that lives, once all that is to be seen has happened."""
    with ExitStack() as stack:
        ledger, redis = stack.enter_context(Ledger()), stack.enter_context(RedisServer())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        first, second = (
            Gateway(
                folder / f"{name}.log",
                ledger.url,
                redis.url,
                before=f"import socket; socket.gethostname = lambda: {name!r}",  # no picture shows this machine's
                namespace="payments",
                routes=ROUTES,
                idempotency={"lease": LEASE},
                admin_tokens=[AdminToken.of("alice", TOKEN).setting()],
            )
            for name in ("gateway-1", "gateway-2")
        )
        for each in (first, second):
            stack.callback(each.end)
            each.ready()
        lose(first, ledger)
        use(second)
        (folder / "bank.py").write_text(HANDLER, "utf-8")
        options = ["--handler", "bank:book", "--name", "worker-1", "--namespace", "payments", "--cache", redis.url]
        worker = stack.enter_context(running("worker", *options, PYTHONPATH=str(folder)))
        worker.wait_for("reads stream")
        give_up(second)
        yield second


def lose(gateway: Gateway, ledger: Ledger) -> None:
    """Kill ``gateway`` (SIGKILL) while the service has payments of it."""
    gate = ledger.gate()
    with ExitStack() as stack:
        stack.callback(gate.open)
        for number in range(LOST):
            ledger.answer(f"lost-{number}", Reply(gate=gate))
            head = (
                f"POST /payments HTTP/1.1\r\nhost: a\r\nidempotency-key: lost-{number}\r\nauthorization: Bearer shop\r\n"
                "content-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
            )
            connection = stack.enter_context(socket.create_connection(gateway.address, timeout=PATIENCE))
            connection.sendall(head.encode())
        wait_until(lambda: all(ledger.arrivals(f"lost-{number}") for number in range(LOST)), "the service has them")
        gateway.kill()


def use(gateway: Gateway) -> None:
    """First requests, replays, keys that are used for something else, and retries of what was lost."""
    for number in range(PAID):
        assert send(gateway, "/payments", f"paid-{number}", amount=number) == 201
        if number % 4 == 0:
            assert send(gateway, "/refunds", f"back-{number}", amount=number) == 201
    for number in range(REPLAYED):
        assert send(gateway, "/payments", f"paid-{number}", amount=number) == 201
    for number in range(REUSED):
        assert send(gateway, "/payments", f"paid-{number}", amount=999) == 422
    for number in range(LOST - 1):
        wait_until(partial(is_unknown, gateway, f"lost-{number}"), "its lease lapses")


def is_unknown(gateway: Gateway, key: str) -> bool:
    """Whether a retry is told that nobody knows."""
    headers = {"idempotency-key": key, "authorization": "Bearer shop", "content-type": "application/json"}
    answer = httpx.post(f"{gateway.url}/payments", headers=headers, content=b"{}", timeout=PATIENCE)
    return answer.status_code == 409 and answer.json()["code"] == "outcome-unknown"


def give_up(gateway: Gateway) -> None:
    """Commands that the bank takes, and those that it doesn't."""
    for number in range(PAID):
        assert send(gateway, "/orders", f"order-{number}", order=number, currency="EUR", account=1) == 202
    for number in range(HOPELESS):
        assert send(gateway, "/orders", f"gold-{number}", order=PAID + number, currency="XAU", account=1) == 202
    for number in range(CLOSED):
        assert (
            send(gateway, "/orders", f"closed-{number}", order=90 + number, currency="EUR", account=70 + number) == 202
        )
    wait_until(lambda: done(gateway), "all were processed, or given up")


def done(gateway: Gateway) -> bool:
    """Whether no command waits."""
    headers = {"authorization": f"Bearer {TOKEN}"}
    answer = httpx.get(f"{gateway.url}/_oncegate/streams/", headers=headers, timeout=PATIENCE)
    (stream,) = answer.json()["streams"]
    return [(each["lag"], each["pending"]) for each in stream["groups"]] == [(0, 0)] and stream[
        "dead"
    ] == HOPELESS + CLOSED


def send(gateway: Gateway, path: str, key: str, **payload: Any) -> int:
    """The status of a request."""
    headers = {"idempotency-key": key, "authorization": "Bearer shop"}
    return httpx.post(f"{gateway.url}{path}", headers=headers, json=payload, timeout=PATIENCE).status_code
