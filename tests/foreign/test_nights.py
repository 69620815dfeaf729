"""An operator's nights, from the alert to the end, through the console's pages alone, in front of real processes and servers.

Rules of docs/contract.md: R11.43, R11.50.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from oncegate.app.settings.admin_tokens import AdminToken
from testing.caller import fresh_key
from testing.gateway import DEADLINE, Gateway
from testing.ledger import Ledger
from testing.servers import RedisServer, free_port
from testing.waiting import wait_until
from tests.foreign.chrome import Chrome
from tests.foreign.conftest import fetched_or_skipped
from tests.foreign.nights import Night
from tests.system.conftest import Start
from tests.system.prometheus import Prometheus
from tests.worker.shop import Shop

TOKEN = "oncegate-a-token-that-changes"
TOKENS = [AdminToken.of("will", TOKEN).setting()]
POISONED, HOPELESS, GOOD = 40, 5, 10
"""Commands that the bank refuses while it doesn't know their currency; for accounts that are closed; and others."""
REUSED = 60
RISING = 'increase(oncegate_requests_total{decision="key-reused"}[10m]) > 0'

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def chrome() -> Iterator[Chrome]:
    with Chrome(fetched_or_skipped("chromium")) as running:
        yield running


@pytest.fixture
def shop(redis_server: RedisServer, tmp_path: Path) -> Iterator[Shop]:
    opened = Shop(redis_server.url, tmp_path)
    yield opened
    opened.close()


def show(capsys: pytest.CaptureFixture[str], night: str, took: str) -> None:
    with capsys.disabled():
        sys.stdout.write(f"\n{night}: {took}\n")


# -- a poison command fills the dead letters ----------------------------------------------------------------------------


class Bank:
    """A shop whose commands are accepted by a gateway, and executed by a worker that asks a bank; and the bank's own books."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop
        self.metrics_port = free_port()
        routes = [{"path": "/payments", "mode": "async", "on_missing_key": "reject"}]
        _, self.url = shop.serve(routes, settings={"admin_tokens": TOKENS})
        settings = {"worker__handler": "tests.foreign.bank:pay", "worker__metrics_port": self.metrics_port}
        shop.start(settings=settings, name="worker-1").reads()

    def pay(self, key: str, **payment: Any) -> str:
        """The id of an accepted command."""
        headers = {"idempotency-key": key, "authorization": "Bearer a"}
        given = payment | {"currencies": str(self._currencies)}
        answer = httpx.post(f"{self.url}/payments", headers=headers, json=given, timeout=DEADLINE)
        assert answer.status_code == 202
        return str(answer.json()["command"])

    def mend(self) -> None:
        """The bank knows the currency from now on."""
        self._currencies.write_text("XAU")

    def status(self, command: str) -> str:
        """What its caller is told of a command."""
        headers = {"authorization": "Bearer a"}
        answer = httpx.get(f"{self.url}/_oncegate/commands/{command}", headers=headers, timeout=DEADLINE)
        return str(answer.json()["status"])

    def booked(self) -> Counter[str]:
        """How often the bank has booked, by key."""
        return Counter(line.split()[0] for line in self._shop.effect_lines())

    @property
    def _currencies(self) -> Path:
        return self._shop.folder / "currencies"


def is_through(night: Night) -> bool:
    """Whether the page of commands says that nothing is left to be read, nor pending."""
    return [(row["Not read yet"], row["Pending"]) for row in night.rows("Who reads it")] == [("0", "0")]


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "plain"])
def test_a_poison_command_has_filled_the_dead_letters(
    chrome: Chrome, shop: Shop, capsys: pytest.CaptureFixture[str], scripts: bool
) -> None:
    bank = Bank(shop)
    with Prometheus(f"127.0.0.1:{bank.metrics_port}", "/metrics") as prometheus:
        wait_until(lambda: prometheus.scrapes() >= 2, "the worker is looked at")
        good = {key: bank.pay(key) for key in (f"good-{n}" for n in range(GOOD))}
        poisoned = {key: bank.pay(key, currency="XAU") for key in (f"gold-{n}" for n in range(POISONED))}
        hopeless = {key: bank.pay(key, account=100 + n) for n in range(HOPELESS) for key in [f"closed-{n}"]}
        wait_until(lambda: "OncegateDeadLetters" in prometheus.active(), "the alert")
    shop.done()

    night = Night(chrome.tab(scripts=scripts))
    night.log_in(f"{bank.url}/_oncegate/console", TOKEN)
    assert night.figure("Dead letters of commands") == str(POISONED + HOPELESS)
    night.click("Dead letters of commands")
    assert night.title() == "Commands"
    errors = {row["Error"]: row["Commands"] for row in night.rows("What was given up, by error")}
    assert errors == {
        "NotRetryable: the bank does not know the currency XAU": str(POISONED),
        "NotRetryable: account # is closed": str(HOPELESS),
    }

    bank.mend()
    night.click("NotRetryable: the bank does not know the currency XAU")
    first = night.rows("The newest")[0]
    assert first["Command"] in poisoned.values()
    night.click(first["Dead letter"])
    night.fill("Reason", "the bank knows gold now: is that so?")
    night.click("Retry: have this command processed again")
    assert f"The dead letter {first['Dead letter']} was retried." in night.text()
    night.until(lambda: is_through(night), "that it is processed")
    assert night.figure("Dead letters") == str(POISONED + HOPELESS - 1)
    assert bank.booked()[next(key for key, command in poisoned.items() if command == first["Command"])] == 1

    night.click("NotRetryable: the bank does not know the currency XAU")
    night.fill("Reason", "it does")
    night.click("Retry: have all of this error processed again")
    assert f"{POISONED - 1} dead letters were retried." in night.text()
    night.until(lambda: is_through(night), "that they are processed")
    assert night.figure("Dead letters") == str(HOPELESS)
    night.click("NotRetryable: account # is closed")
    night.fill("Reason", "closed accounts stay closed; the shop has told its customers")
    night.click("Discard: take all of this error away for good")
    assert f"{HOPELESS} dead letters were discarded." in night.text()
    assert "No dead letters." in night.text()
    night.click("Overview")
    assert night.figure("Dead letters of commands") == "0"
    took = night.over()

    shop.done()
    assert {bank.status(command) for command in (good | poisoned).values()} == {"succeeded"}
    assert "succeeded" not in {bank.status(command) for command in hopeless.values()}
    assert bank.booked() == Counter([*good, *poisoned]), "each once, and what was discarded never"
    night.click("Audit")
    done = [
        (row["Who"], row["What"].split(" of ")[0], row["Was"], row["Why"]) for row in night.rows("The newest first")
    ]
    assert done == [
        (
            "will",
            f"{HOPELESS} dead letters",
            "discarded",
            "closed accounts stay closed; the shop has told its customers",
        ),
        ("will", f"{POISONED - 1} dead letters", "retried", "it does"),
        ("will", "1 dead letters", "retried", "the bank knows gold now: is that so?"),
    ]
    show(capsys, "a poison command fills the dead letters", took)


# -- a caller reuses one key for everything -----------------------------------------------------------------------------


def buy(gateway: Gateway, caller: str, key: str, item: int) -> int:
    headers = {"idempotency-key": key, "authorization": f"Bearer {caller}"}
    return httpx.post(f"{gateway.url}/payments", headers=headers, json={"item": item}, timeout=DEADLINE).status_code


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "plain"])
def test_a_caller_reuses_one_key_for_everything(
    chrome: Chrome,
    start: Start,
    ledger: Ledger,
    redis_server: RedisServer,
    capsys: pytest.CaptureFixture[str],
    scripts: bool,
) -> None:
    reused, keys = fresh_key(), [fresh_key() for _ in range(GOOD)]
    more = {"admin_tokens": TOKENS, "namespace": fresh_key(), "workers": 2}
    gateway = start(ledger.url, redis_server.url, routes=[{"path": "/payments"}], **more).ready()
    with Prometheus(gateway.url.removeprefix("http://")) as prometheus:
        wait_until(lambda: prometheus.scrapes() >= 2, "the gateway is looked at")
        assert {buy(gateway, f"honest-{n}", key, n) for n, key in enumerate(keys)} == {201}
        statuses = Counter(buy(gateway, "careless", reused, item) for item in range(REUSED))
        assert statuses == {201: 1, 422: REUSED - 1}
        wait_until(lambda: prometheus.query(RISING), "the graph of the 422s rises")

    night = Night(chrome.tab(scripts=scripts))
    night.log_in(f"{gateway.url}/_oncegate/console", TOKEN)
    assert [(row["Route"], row["reused"]) for row in night.rows("By this gateway")] == [("/payments", str(REUSED - 1))]
    night.click("Callers")
    (refused,) = night.rows("Those who were refused most often first")
    caller = refused["Caller's digest"]
    assert refused == {
        "Caller's digest": caller,
        "Route": "/payments",
        "key-reused 422": str(REUSED - 1),
        "all": str(REUSED - 1),
    }
    night.click(caller)
    assert night.title() == "Records"
    (row,) = night.rows("The newest")
    assert (row["State"], row["Request"]) == ("succeeded", "POST /payments")
    assert row["Record"].endswith(f":{caller}")
    night.click(row["Record"])
    assert night.title() == "Record"
    assert "attempt 1 began" in night.text()
    assert "the outcome was recorded" in night.text()
    took = night.over()

    assert len(ledger.arrivals(reused)) == 1, "the service has executed the first one, and no other"
    assert [len(ledger.arrivals(key)) for key in keys] == [1] * GOOD
    show(capsys, "a caller reuses one key for everything", took)
