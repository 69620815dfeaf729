"""An operator's night, by the console's pages alone: a gateway was killed in the midst of 40 payments, some of them booked.

From the alert to the end, in a headless Chromium, with scripts and without: each payment is booked once, and each client gets the
right answer. Prints the clicks and seconds.

Rules of docs/contract.md: R11.50, R11.56.
"""

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from time import monotonic

import httpx
import pytest

from oncegate.app.settings.admin_tokens import AdminToken
from testing.caller import fresh_key, is_replay, slug
from testing.gateway import DEADLINE, Gateway
from testing.own_loop import OwnLoopUpstream
from testing.servers import RedisServer
from testing.upstreams import Peer
from testing.waiting import wait_until
from tests.foreign.chrome import Chrome, Tab
from tests.foreign.conftest import decided, fetched_or_skipped
from tests.system.conftest import Start

TOKEN = "oncegate-a-token-that-changes"
ANSWERED, BOOKED, REFUSED = 12, 13, 15
"""How many of the 40 payments were answered when the gateway was killed, how many booked and not answered, how many neither."""
LEASE, PATIENT = 9, 3
"""Seconds: the gateways' lease, and a cache time-out that only a dead Redis exceeds."""


class Payments(OwnLoopUpstream):
    """A payments service with ``books``: what was booked for each key. ``holds`` names keys whose first request is not answered
    while the gateway lives, ``before`` it is booked or ``after``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.books: dict[str, list[str]] = {}
        self.arrived = Counter[str]()
        self.holds: dict[str, str] = {}

    async def serve(self, peer: Peer) -> None:
        while True:
            request = await peer.request()
            key = request.value("idempotency-key") or ""
            self.arrived[key] += 1
            held = self.holds.get(key) if self.arrived[key] == 1 else None
            if held == "before":
                await peer.hang()
                return
            payment = f"pay_{sum(map(len, self.books.values())) + 1}"
            self.books.setdefault(key, []).append(payment)
            if held == "after":
                await peer.hang()
                return
            body = answer_of(payment)
            head = f"HTTP/1.1 201 Created\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            await peer.send(head.encode() + body)


def answer_of(payment: str) -> bytes:
    return json.dumps({"payment": payment}).encode()


@pytest.fixture(scope="module")
def chrome() -> Iterator[Chrome]:
    with Chrome(fetched_or_skipped("chromium")) as running:
        yield running


@pytest.fixture
def payments() -> Iterator[Payments]:
    with Payments() as running:
        yield running


def pay(gateway: Gateway, key: str) -> httpx.Response:
    headers = {"idempotency-key": key, "authorization": "Bearer alice"}
    return httpx.post(f"{gateway.url}/payments", headers=headers, content=b"{}", timeout=DEADLINE)


class Operator:
    """Somebody at the console, whose clicks are counted."""

    def __init__(self, tab: Tab, gateway: Gateway) -> None:
        self.tab = tab
        self.clicks = 0
        self.began = monotonic()
        tab.open(f"{gateway.url}/_oncegate/console")
        tab.fill("#token", TOKEN)
        self.click("main button")

    def click(self, selector: str) -> None:
        self.clicks += 1
        self.tab.click(selector)

    def follow(self, text: str) -> None:
        """Click the link that reads so."""
        self.tab.run(
            f"[...document.querySelectorAll('a')].find(e => e.textContent.trim() === {json.dumps(text)}).id = 'wanted'; 0"
        )
        self.click("#wanted")

    def reads(self, selector: str = "main") -> str:
        return str(self.tab.run(f"document.querySelector({json.dumps(selector)}).innerText"))

    def resolve_one(self, key: str, body: bytes) -> None:
        """The payment of this key was made: find its record, and say so."""
        self.follow("Find")
        self.tab.fill("#what", key)
        self.click("main button")
        assert self.reads(".state") == "unknown"
        self.tab.fill("#status", "201")
        self.tab.fill("#body", body.decode())
        self.tab.fill("#reason-succeeded", "it is in the books")
        self.click("#reason-succeeded ~ button")
        assert self.reads(".notice").startswith("Resolved as executed")

    def release_all(self, count: int) -> None:
        """None of those that are left was made."""
        self.follow("Unknown")
        self.follow("Resolve or release all that match")
        assert f"{count} records of unknown outcome match." in self.reads()
        self.tab.fill("#reason-release", "none of these is in the books")
        self.click("#reason-release ~ button")
        assert self.reads(".notice") == f"{count} records were released."


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "plain"])
def test_a_gateway_died_in_the_midst_of_40_payments(
    chrome: Chrome, start: Start, redis_server: RedisServer, payments: Payments, scripts: bool
) -> None:
    keys = [fresh_key() for _ in range(ANSWERED + BOOKED + REFUSED)]
    payments.holds |= dict.fromkeys(keys[ANSWERED : ANSWERED + BOOKED], "after")
    payments.holds |= dict.fromkeys(keys[ANSWERED + BOOKED :], "before")
    settings = {"namespace": fresh_key(), "admin_tokens": [AdminToken.of("will", TOKEN).setting()]}
    rules = {"lease": LEASE}
    lost, other = (
        start(payments.url, redis_server.url, cache_timeout=PATIENT, idempotency=rules, **settings) for _ in range(2)
    )
    lost.ready()
    with ThreadPoolExecutor(len(keys)) as clients:
        sent: list[Future[httpx.Response]] = [clients.submit(pay, lost, key) for key in keys]
        wait_until(lambda: len(payments.arrived) == len(keys), "all payments have arrived")
        answered = {key: future.result(DEADLINE) for key, future in zip(keys[:ANSWERED], sent, strict=False)}
        lost.kill()
        for future in sent[ANSWERED:]:
            assert isinstance(future.exception(DEADLINE), httpx.TransportError)
    gateway = other.ready()

    # The alert: a client's retry is refused (OncegateRefusedAsUnknown).
    assert decided(gateway, "outcome-unknown") == 0
    wait_until(lambda: slug(pay(gateway, keys[-1])) == "outcome-unknown", "its lease is over")
    assert decided(gateway, "outcome-unknown") >= 1

    operator = Operator(chrome.tab(scripts=scripts), gateway)
    unknown = len(keys) - ANSWERED

    def all_are_seen() -> bool:
        operator.tab.open(f"{gateway.url}/_oncegate/console")
        return f"Unknown outcomes\n{unknown}" in operator.reads()

    wait_until(all_are_seen, "their leases are over")
    operator.follow("Unknown outcomes")
    assert operator.tab.run("document.querySelectorAll('tbody tr').length") == unknown

    # The service's own books say which of those that clients ask about were made, each with an answer of its own.
    made = {key: payments.books[key][0] for key in keys[ANSWERED:] if key in payments.books}
    assert len(made) == BOOKED
    for key, payment in made.items():
        operator.resolve_one(key, answer_of(payment))
    operator.release_all(REFUSED)
    seconds = monotonic() - operator.began
    print(f"{operator.clicks} clicks, {seconds:.1f} s")  # noqa: T201 - what such a night takes
    assert operator.clicks == 1 + 1 + 3 * BOOKED + 3

    operator.follow("Overview")
    assert "Unknown outcomes\n0" in operator.reads()
    operator.follow("Audit")
    audit = operator.reads("table")
    assert audit.count("it is in the books") == BOOKED
    assert f"{REFUSED} records of unknown outcome (until " in audit
    assert operator.tab.wrong() == []

    # Retries get the right answers, and each payment is booked once.
    for key in keys:
        answer = pay(gateway, key)
        assert (answer.status_code, answer.content) == (201, answer_of(payments.books[key][0]))
        assert is_replay(answer) is (key not in keys[ANSWERED + BOOKED :])
        assert answer.content == answered[key].content if key in answered else True
    assert {key: len(booked) for key, booked in payments.books.items()} == dict.fromkeys(keys, 1)
