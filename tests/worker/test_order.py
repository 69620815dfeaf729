"""A worker runs what is parked and whose turn has come, also what another process has left, and records what became of it.

Rules of docs/contract.md: R12.17.
"""

import asyncio
from pathlib import Path
from typing import Any

from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.orm import Session, sessionmaker

from oncegate import Action, Delivery, Subscription
from oncegate.sql import Inbox
from oncegate.sql.inbox.create import create
from oncegate.sql.order.waiting import OrderTables
from testing.servers import free_port
from testing.waiting import wait_until
from tests.worker.shop import Shop
from tests.worker.test_inbox import start
from tests.worker.test_metrics import values


def test_it_runs_what_is_parked_and_records_that(shop: Shop, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    create(url, None)
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE account (balance INTEGER)"))
        connection.execute(text("INSERT INTO account VALUES (0)"))

    @Inbox("ledger", order="contiguous").transaction(sessionmaker(engine))
    def book(payment: dict[str, Any], session: Session) -> None:
        raise AssertionError("its turn has not come")

    async def park() -> Action:
        subscription = Subscription("ledger", cache="memory://")
        delivery = Delivery("order-2", b"p", aggregate="account-7", sequence=2)
        return (await subscription.execute(delivery, book, {"amount": 5})).action

    assert asyncio.run(park()) is Action.ACKNOWLEDGE
    OrderTables(None).skip(url, "ledger", "account-7", 1)
    port = free_port()
    start(shop, tmp_path, "tests.worker.ordering:book", worker__metrics_port=port)

    def booked() -> bool:
        with engine.begin() as connection:
            return bool(connection.scalar(text("SELECT balance FROM account")) == 5)

    wait_until(booked, "the worker has run it")
    shop.submit("order-4", {"amount": 7}, aggregate="account-7", sequence=4)
    shop.done()
    assert shop.state("order-4") == "absent"
    shop.submit("order-3", {"amount": 1}, aggregate="account-7", sequence=3)
    shop.becomes("order-4", "succeeded")
    left = [shop.redis.pttl(each) for each in (shop.place("order-4"), shop.key("order-4"))]
    assert 0 < left[0] < left[1], "it ends with its submission's"
    counted = values(port, "oncegate_inbox_deliveries_total", "decision")
    assert (counted["early"], counted["first"]) == (1, 3), "its inbox is on the worker's page"
