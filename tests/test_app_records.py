"""`AppRecords`, which tests of one's own app are made with: a cache whose records lapse and owners die when a test wants it.

Rules of docs/contract.md: R12.41.
"""

from collections.abc import Callable
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from oncegate import IdempotencyMiddleware, IdempotencySettings, MemoryCache, OutcomeUnknownError, idempotent
from oncegate.testing import AppRecords, CacheBehaviours
from oncegate.testing.records import records

__all__ = ["records"]

SECRETS = ["s" * 32, "former " * 8]


class AppStore:
    """An `AppRecords` for the suite, whose clock is put forward."""

    def __init__(self) -> None:
        self.cache = AppRecords()
        self.key = "n:k:s"

    def pass_time(self, milliseconds: int) -> None:
        self.cache._passed += milliseconds / 1000


class TestAppRecords(CacheBehaviours):
    """It is a cache."""

    @pytest.fixture
    def store(self) -> AppStore:
        return AppStore()


class Shop:
    """An app whose handler counts, and may do something before it has answered."""

    def __init__(self, **options: Any) -> None:
        self.paid = 0
        self.app = FastAPI()
        self.meanwhile: Callable[[], None] = lambda: None
        self.app.add_middleware(IdempotencyMiddleware, **({"cache": MemoryCache()} | options))

        @self.app.post("/pay")
        def pay() -> int:
            self.paid += 1
            self.meanwhile()
            return self.paid

    def pay(self, key: str = "k") -> Any:
        return TestClient(self.app).post("/pay", headers={"Idempotency-Key": key})


@pytest.fixture
def shop() -> Shop:
    return Shop()


def test_an_app_has_its_own_cache_back_once_the_test_is_over(shop: Shop) -> None:
    shop.pay()
    within = AppRecords()
    within.use(shop.app)
    within.use(shop.app, enforce=False)
    assert [shop.pay().json() for _ in range(2)] == [2, 3]
    within.restore()
    assert len(within) == 0
    assert shop.pay().json() == 1, "the record of before"


@pytest.mark.parametrize("secret", [None, SECRETS[0], SECRETS])
def test_a_key_is_found_whatever_secret_the_app_has(records: AppRecords, secret: Any) -> None:
    shop = Shop(secret=secret)
    records.use(shop.app)
    shop.pay()
    records.lapse("k")
    assert shop.pay().json() == 2
    shop = Shop(secret=secret, cache=(own := AppRecords(secret)))
    shop.pay()
    own.lapse("k")
    assert shop.pay().json() == 2


def test_an_owner_that_was_killed_records_nothing(shop: Shop, records: AppRecords) -> None:
    records.use(shop.app)
    shop.meanwhile = lambda: records.kill_owner("k")
    shop.pay()
    assert shop.pay().json()["code"] == "in-flight"
    records.lapse("k")
    assert shop.pay().json()["code"] == "outcome-unknown"
    records.lapse("k")
    shop.meanwhile = lambda: None
    assert shop.pay().json() == 2, "forgotten, and executed again"
    assert shop.pay().json() == 2


def test_time_passes_no_further_than_it_has_to(shop: Shop, records: AppRecords) -> None:
    records.use(shop.app)
    shop.pay("long")
    shop.meanwhile = lambda: records.kill_owner("k")
    shop.pay()
    records.lapse("k")
    assert shop.pay("long").json() == 1


def test_what_is_not_there_is_named(shop: Shop, records: AppRecords) -> None:
    records.use(shop.app)
    with pytest.raises(LookupError, match="no record"):
        records.lapse("k")
    shop.pay()
    with pytest.raises(LookupError, match="nothing is executed"):
        records.kill_owner("k")
    with pytest.raises(LookupError, match="no record"):
        records.lapse("other")
    with pytest.raises(LookupError, match="no IdempotencyMiddleware"):
        records.use(FastAPI())
    with pytest.raises(LookupError, match="no IdempotencyMiddleware"):
        records.use(object())


def test_while_it_is_away_nothing_is_executed_and_nothing_lost(shop: Shop, records: AppRecords) -> None:
    records.use(shop.app)
    shop.pay()
    with records.away():
        assert shop.pay().status_code == 503
        assert shop.pay("other").status_code == 503
    assert (shop.pay().json(), shop.paid) == (1, 1)


def test_a_function_is_no_other(records: AppRecords) -> None:
    runs = []

    @idempotent(key=lambda order: order, cache=records, name="charge", settings=IdempotencySettings(lease=5))
    def charge(order: str) -> int:
        runs.append(order)
        records.kill_owner(order)
        return len(runs)

    charge("k")
    records.lapse("k")
    with pytest.raises(OutcomeUnknownError):
        charge("k")
    assert runs == ["k"]


def test_a_cache_in_memory_forgets_when_it_is_cleared() -> None:
    shop = Shop(cache=(kept := MemoryCache()))
    assert [shop.pay().json() for _ in range(2)] == [1, 1]
    assert kept.size_bytes > 0
    kept.clear()
    assert (len(kept), kept.size_bytes) == (0, 0)
    assert [shop.pay().json() for _ in range(2)] == [2, 2]
