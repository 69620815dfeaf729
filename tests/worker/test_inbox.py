"""A worker's handler under an inbox: what Redis has forgotten, the inbox knows, with the result."""

import json
from pathlib import Path
from time import time

import pytest
from sqlalchemy import Engine, MetaData, NullPool, create_engine, text

from oncegate.sql import Inbox
from testing.command_line import invoke
from tests.worker.shop import Shop, WorkerProcess


def database(folder: Path) -> Engine:
    engine = create_engine(f"sqlite:///{folder}/shop.db", poolclass=NullPool)
    with engine.begin() as connection:
        Inbox("billing").table(MetaData()).create(connection)
        connection.execute(text("CREATE TABLE account (balance INTEGER)"))
        connection.execute(text("INSERT INTO account VALUES (0)"))
    return engine


def start(shop: Shop, folder: Path, handler: str = "tests.worker.paying:pay", **settings: float) -> WorkerProcess:
    given = {"worker__handler": handler} | settings
    others = {
        "DIES_AT": "",
        "CONSTANTS": '{"work.RETRY_BASE": 0.05}',
        "PAYMENTS": f"sqlite+aiosqlite:///{folder}/shop.db",
    }
    return shop.start_process("worker", given, others)


def test_a_command_whose_record_is_lost_is_not_executed_again(shop: Shop, tmp_path: Path) -> None:
    engine = database(tmp_path)
    start(shop, tmp_path)
    results = []
    for _ in range(2):
        shop.submit("order-7", {"amount": 5})
        shop.done()
        results.append(shop.response("order-7").body)
        shop.redis.delete(shop.place("order-7"))
    assert results == [b'{"paid":5,"key":"order-7"}'] * 2
    with engine.begin() as connection:
        assert connection.scalar(text("SELECT balance FROM account")) == 5
        assert connection.scalar(text("SELECT count(*) FROM oncegate_inbox")) == 1


def test_a_worker_may_have_its_inbox_forget(shop: Shop, tmp_path: Path) -> None:
    """And what it has forgotten is a dead letter: the gateway accepted it before that."""
    engine = database(tmp_path)
    worker = start(shop, tmp_path, worker__inbox_cleanup_interval=0.2)
    shop.submit("order-7", {"amount": 5})
    shop.done()
    with engine.begin() as connection:
        connection.execute(text("UPDATE oncegate_inbox SET received_at = datetime(received_at, '-8 days')"))
    worker.logs("has forgotten 1 messages")
    shop.redis.delete(shop.place("order-7"))
    shop.submit("order-7", {"amount": 5}, accepted_at_ms=int((time() - 8 * 86400) * 1000))
    shop.done()
    assert [(letter["dead.error_type"], letter["dead.attempts"]) for letter in shop.letters()] == [("Forgotten", "1")]
    with engine.begin() as connection:
        assert connection.scalar(text("SELECT balance FROM account")) == 5


@pytest.mark.parametrize("behind_ms", [0, 1, 120_000], ids=["one clock", "a moment", "a late gateway"])
def test_a_cleanup_beside_waiting_commands_makes_none_of_them_a_dead_letter(
    shop: Shop, tmp_path: Path, behind_ms: int
) -> None:
    """A command's instant is its gateway's, its entry's that of Redis: only the first one is compared, on both sides."""
    engine = database(tmp_path)
    now_ms = int(time() * 1000)
    days_ago = now_ms - 9 * 86_400_000
    for number, entry_ms in enumerate([days_ago, days_ago + 10_000, now_ms]):
        command = shop.command(f"order-{number}", {"amount": 5}, accepted_at_ms=entry_ms - behind_ms * (1 + number % 2))
        shop.redis.xadd(shop.stream, command.fields(), f"{entry_ms}-1")  # type: ignore[arg-type]  # a dict of bytes is one of those
    with engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO oncegate_inbox (received_at, consumer, message) VALUES (datetime('now', '-20 days'), 'billing', 'x')"
            )
        )
    config = tmp_path / "gateway.toml"
    config.write_text(f'cache = "{shop.url}"\nnamespace = "{shop.namespace}"\n')
    where = f"sqlite:///{tmp_path}/shop.db"
    done = invoke("inbox", "cleanup", "--database", where, "--config", str(config), "--json")
    assert json.loads(done.stdout)["pruned"] == 1, done.stderr
    start(shop, tmp_path)
    shop.done()
    assert shop.letters() == []
    with engine.begin() as connection:
        assert connection.scalar(text("SELECT balance FROM account")) == 15


def test_a_handler_without_an_inbox_can_not_have_it_forget(shop: Shop, tmp_path: Path) -> None:
    worker = start(shop, tmp_path, "tests.worker.handlers:book", worker__inbox_cleanup_interval=60)
    assert worker.code() == 2
    assert "the handler has no inbox" in worker.text()
