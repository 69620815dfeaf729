"""The scenarios, done with real gateways, a real service and a real Redis; who is killed, is killed by SIGKILL.

What a client notes is what it sent and got, what the service notes is what it got, booked and sent. Nothing is noted that
nobody saw.
"""

import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from testing.gateway import Gateway
from testing.pictures.events import Act, Message, Run
from testing.pictures.service import SERVICE, Payments, payments
from testing.servers import RedisServer
from testing.waiting import PATIENCE, wait_until

CLIENT, GATEWAY = "client", "gateway"
FIRST, SECOND = "gateway A", "gateway B"
OPERATOR = "operator"
KEY = "k1"
LEASE = 2
"""Seconds that a gateway which was killed counts as alive."""


class Client:
    """A party that pays under `KEY`, and notes what it sends and gets."""

    def __init__(self, run: Run, name: str = CLIENT) -> None:
        self._run, self._name = run, name

    def pay(self, gateway: Gateway, at: str, amount: int = 100, **headers: str) -> httpx.Response:
        """Pay by way of ``gateway``, which the run calls ``at``."""
        self.send(at, **headers)
        answer = self.quietly(gateway, amount, **headers)
        self.got(at, answer)
        return answer

    def send(self, at: str, **headers: str) -> None:
        """Note that a payment is sent."""
        more = "".join(f", {name}: {value}" for name, value in headers.items())
        self._run.note(Message(self._name, at, f"POST, key {KEY}{more}"))

    def got(self, at: str, answer: httpx.Response) -> None:
        """Note an answer."""
        self._run.note(Message(at, self._name, _in_short(answer), bad=answer.is_error))

    @staticmethod
    def quietly(gateway: Gateway, amount: int = 100, **headers: str) -> httpx.Response:
        """Pay, and note nothing."""
        fields = {"Idempotency-Key": KEY, **headers}
        return httpx.post(f"{gateway.url}/payments", json={"amount": amount}, headers=fields, timeout=PATIENCE)


def retry(run: Run, folder: Path) -> None:
    """A client gives up before its answer comes, and asks again."""
    with payments(run) as service, gateways(folder, service, count=1) as (gateway,):
        client = Client(run)
        client.send(GATEWAY)
        with leaves(gateway):
            _await(service.booked)
        run.note(Act(CLIENT, "gives up, and is gone", bad=True))
        service.open.set()
        wait_until(lambda: _metric(gateway, 'oncegate_attempts_total{outcome="succeeded"') == 1, "it is recorded")
        client.pay(gateway, GATEWAY)


def duplicate(run: Run, folder: Path) -> None:
    """Two more requests come while the first one is executed: one is refused, one waits."""
    with payments(run) as service, gateways(folder, service, count=1) as (gateway,):
        first, other = Client(run, CLIENT), Client(run, "its duplicate")
        first.send(GATEWAY)
        with _beside(lambda: Client.quietly(gateway)) as answer:
            _await(service.booked)
            other.pay(gateway, GATEWAY)
            other.send(GATEWAY, Prefer="wait=10")
            with _beside(lambda: Client.quietly(gateway, Prefer="wait=10")) as waited:
                claims = 'oncegate_cache_seconds_count{operation="claim"}'
                wait_until(lambda: _metric(gateway, claims) == 3, "it has found the first one's record, and waits")
                service.open.set()
        # Both come at once. They are noted from left to right.
        first.got(GATEWAY, answer[0])
        other.got(GATEWAY, waited[0])


def crash(run: Run, folder: Path) -> None:
    """A gateway is killed in an attempt, before a service that knows keys: by `on_unknown = "retry"` it is tried again."""
    with killed(run, folder, on_unknown="retry") as (service, gateway, _):
        service.open.set()
        Client(run).pay(gateway, SECOND)


def unknown(run: Run, folder: Path) -> None:
    """The same by the default: the key is refused until somebody has looked into the service's books."""
    with killed(run, folder) as (service, gateway, cache):
        client = Client(run)
        client.pay(gateway, SECOND)
        run.note(Message(OPERATOR, SERVICE, f"GET, key {KEY}"))
        found = httpx.get(f"{service.url}/payments/{KEY}", timeout=PATIENCE).json()
        run.note(Message(SERVICE, OPERATOR, f"payment {found['payment']}"))
        _keys("resolve", KEY, "--status", "201", "--body", json.dumps(found), "--cache", cache)
        run.note(Act(OPERATOR, f"oncegate keys resolve {KEY}"))
        client.pay(gateway, SECOND)


@contextmanager
def killed(run: Run, folder: Path, **rules: str) -> Iterator[tuple[Payments, Gateway, str]]:
    """Two gateways on one Redis, the first of which was killed in an attempt whose lease has lapsed: the service, the
    second, and the URL of the records."""

    with (
        RedisServer() as redis,
        payments(run) as service,
        gateways(folder, service, redis.url, 2, lease=LEASE, **rules) as (first, second),
    ):
        client = Client(run)
        client.send(FIRST)
        with leaves(first):
            _await(service.booked)
            first.kill()
        run.note(Act(FIRST, "SIGKILL", ends=True, bad=True))
        service.gateway = SECOND
        client.pay(second, SECOND)
        service_sees = len(run.events)
        wait_until(lambda: _lapsed(redis.url), "its lease lapses")
        run.note(Act(SECOND, "A's lease has lapsed"))
        if len(run.events) != service_sees + 1:
            raise AssertionError("the service was called while the lease ran")
        yield service, second, redis.url


@contextmanager
def gateways(
    folder: Path, service: Payments, cache: str = "memory://", count: int = 2, **idempotency: Any
) -> Iterator[list[Gateway]]:
    """``count`` gateways before ``service``."""
    started = [
        Gateway(folder / f"{number}.log", service.url, cache, idempotency=idempotency) for number in range(count)
    ]
    try:
        yield [gateway.ready() for gateway in started]
    finally:
        for gateway in started:
            gateway.end()


@contextmanager
def leaves(gateway: Gateway) -> Iterator[None]:
    """A payment is sent to ``gateway``; its client is gone at the end of the context, without an answer."""
    body = json.dumps({"amount": 100}, separators=(",", ":")).encode()  # as httpx spells it
    head = (
        f"POST /payments HTTP/1.1\r\nhost: a\r\nidempotency-key: {KEY}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(gateway.address, timeout=PATIENCE) as connection:
        connection.sendall(head.encode() + body)
        yield


@contextmanager
def _beside(call: Callable[[], httpx.Response]) -> Iterator[list[httpx.Response]]:
    """``call`` in a thread that ends with the context; what it returned is in the list then."""
    answers: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: answers.append(call()), daemon=True)
    thread.start()
    yield answers
    thread.join(PATIENCE)
    if not answers:
        raise TimeoutError("no answer came")


def _in_short(answer: httpx.Response) -> str:
    body = answer.json()
    if answer.is_error:
        return f"{answer.status_code} {body['code']}"
    again = ", replayed" if answer.headers.get("idempotent-replayed") == "true" else ""
    return f"{answer.status_code}, payment {body['payment']}{again}"


def _await(event: threading.Event) -> None:
    if not event.wait(PATIENCE):
        raise TimeoutError("the service got nothing")
    event.clear()


def _metric(gateway: Gateway, name: str) -> float:
    text = httpx.get(f"{gateway.url}/_oncegate/metrics", timeout=PATIENCE).text
    return sum(float(found) for found in re.findall(rf"^{re.escape(name)}.*? (\S+)$", text, re.M))


def _keys(*arguments: str) -> str:
    command = [str(Path(sys.executable).with_name("oncegate")), "keys", *arguments, "--namespace", "system"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout


def _lapsed(cache: str) -> bool:
    return re.search(r"^\S+ +unknown ", _keys("list", "--state", "unknown", "--cache", cache), re.M) is not None


RUNS: dict[str, tuple[str, tuple[str, ...], Callable[[Run, Path], None]]] = {
    "retry": ("A retry gets the first answer", (CLIENT, GATEWAY, SERVICE), retry),
    "duplicate": ("Requests at the same time", (CLIENT, "its duplicate", GATEWAY, SERVICE), duplicate),
    "crash": (
        'A gateway dies, and the service knows keys: on_unknown = "retry"',
        (CLIENT, FIRST, SECOND, SERVICE),
        crash,
    ),
    "unknown": ("A gateway dies, and nobody knows: the default", (CLIENT, FIRST, SECOND, SERVICE, OPERATOR), unknown),
}
"""By the name of their pictures."""


def run(name: str, folder: Path) -> Run:
    """Do the scenario ``name``. Its logs are in ``folder``."""
    title, parties, scenario = RUNS[name]
    happening = Run(title, parties)
    scenario(happening, folder)
    return happening
