"""A worker's handler under an inbox: what Redis has forgotten, the inbox knows, with the result."""

from pathlib import Path

from sqlalchemy import MetaData, NullPool, create_engine, text

from oncegate.middleware.rules.key import execution_key, record_key
from oncegate.sql import Inbox
from tests.worker.shop import Shop


def test_a_command_whose_record_is_lost_is_not_executed_again(shop: Shop, tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db", poolclass=NullPool)
    with engine.begin() as connection:
        Inbox("billing").table(MetaData()).create(connection)
        connection.execute(text("CREATE TABLE account (balance INTEGER)"))
        connection.execute(text("INSERT INTO account VALUES (0)"))
    settings = {"worker__handler": "tests.worker.paying:pay", "worker__retry_base": 0.05}
    others = {"DIES_AT": "", "CONSTANTS": "{}", "PAYMENTS": f"sqlite+aiosqlite:///{tmp_path}/shop.db"}
    shop._start("worker", settings, others)
    results = []
    for _ in range(2):
        shop.submit("order-7", {"amount": 5})
        shop.done()
        record = shop.record("order-7")
        assert record is not None
        assert record.response is not None
        results.append(record.response.body)
        shop.redis.delete(execution_key(record_key(shop.namespace, "order-7", None), "commands"))
    assert results == [b'{"paid":5,"key":"order-7"}'] * 2
    with engine.begin() as connection:
        assert connection.scalar(text("SELECT balance FROM account")) == 5
        assert connection.scalar(text("SELECT count(*) FROM oncegate_inbox")) == 1
