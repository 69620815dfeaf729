"""docs/patterns/two-aggregates.md: a transfer whose process is killed (SIGKILL) at each step moves the money once.

The oracle is what was asked for: the balances and what is under way always have the same sum, and in the end each transfer has
moved its amount, once.
"""

import asyncio
import subprocess
from pathlib import Path
from runpy import run_path
from signal import SIGKILL
from types import SimpleNamespace
from typing import Any

import pytest
from redis import Redis
from sqlalchemy import NullPool, create_engine, text

from testing import pages
from testing.servers import RedisServer
from testing.template import ROOT, Forked

PAGE = "two-aggregates"
POINTS = {
    "before the debit's commit": (0, 0, 0, 0),
    "between commit and relay": (1, 1, 0, 0),
    "after publishing, before the removal": (1, 1, 1, 0),
    "before the credit's commit": (1, 0, 1, 0),
    "after it, before the acknowledgement": (1, 0, 1, 1),
}
"""How often the transfer is debited then, is in the outbox, is at the broker and not acknowledged, and is credited."""
AMOUNT, START = 30, 1000

PROGRAM = """
import asyncio, os, signal, sys
from runpy import run_path
from types import SimpleNamespace
from redis import Redis
from sqlalchemy import NullPool, create_engine, event

page, folder, port, point, key, amount = sys.argv[1:]
transfer = SimpleNamespace(**run_path(page))

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

class Broker(Redis):
    published = False
    def xadd(self, *given):
        added = super().xadd(*given)
        Broker.published = True
        return added
    def xack(self, *given):
        if point == "after it, before the acknowledgement":
            die()
        return super().xack(*given)

broker = Broker(port=int(port))
payer, payee = (create_engine(f"sqlite:///{folder}/{name}.db", poolclass=NullPool) for name in ("payer", "payee"))
if point == "before the debit's commit":
    event.listen(payer, "commit", die)
if point == "after publishing, before the removal":
    event.listen(payer, "commit", lambda _: Broker.published and die())
if point == "before the credit's commit":
    event.listen(payee, "commit", die)

transfer.debit(payer, key, "alice", "bob", int(amount))
if point == "between commit and relay":
    die()
asyncio.run(transfer.relay(payer, broker))
transfer.consume(payee, broker)
"""
PRELOADED = ("asyncio", "redis", "oncegate.sql")


class Banks:
    """Both sides, and what is between them."""

    def __init__(self, folder: Path, server: RedisServer) -> None:
        (block,) = [
            block
            for _, block in pages.BLOCK.findall((ROOT / "docs" / "patterns" / f"{PAGE}.md").read_text("utf-8"))
            if pages.FILE.match(block)
        ]
        self.page = folder / "transfer.py"
        self.page.write_text(block)
        self.folder, self.server = folder, server
        self.transfer = SimpleNamespace(**run_path(str(self.page)))
        self.payer, self.payee = (
            create_engine(f"sqlite:///{folder}/{name}.db", poolclass=NullPool) for name in ("payer", "payee")
        )
        self.broker: Redis = server.client()
        self.transfer.prepare(self.payer, self.payee, self.broker)
        for bank, account, balance in ((self.payer, "alice", START), (self.payee, "bob", 0)):
            with bank.begin() as connection:
                connection.execute(
                    text("INSERT INTO account VALUES (:id, :balance)"), {"id": account, "balance": balance}
                )

    def killed(self, point: str, key: str) -> None:
        """A transfer from its first step on, in a process that dies at ``point``."""
        arguments = [str(self.page), str(self.folder), str(self.server.port), point, key, str(AMOUNT)]
        process = Forked("-c", PROGRAM, *arguments, preloaded=PRELOADED, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        errors = process.communicate(timeout=60)[1]
        assert process.returncode == -SIGKILL, (point, errors)

    def go_on(self, key: str) -> None:
        """What comes after that: the caller's retry, the relay, the consumer."""
        self.transfer.debit(self.payer, key, "alice", "bob", AMOUNT)
        asyncio.run(self.transfer.relay(self.payer, self.broker))
        self.transfer.consume(self.payee, self.broker)

    def balances(self) -> tuple[int, int]:
        found = []
        for bank in (self.payer, self.payee):
            with bank.connect() as connection:
                found.append(connection.scalar(text("SELECT balance FROM account")))
        return found[0], found[1]

    def waiting(self) -> set[str]:
        """The keys in the outbox."""
        with self.payer.connect() as connection:
            return {str(key) for (key,) in connection.execute(text("SELECT key FROM oncegate_outbox"))}

    def unacknowledged(self) -> set[str]:
        """The keys at the broker that nobody has acknowledged."""
        entries: Any = self.broker.xrange("transfers")
        (group,) = self.broker.xinfo_groups("transfers")
        held: Any = self.broker.xpending_range("transfers", "credits", "-", "+", 100)
        pending = {each["message_id"] for each in held}
        unread = [entry for entry, _ in entries if _order(entry) > _order(group["last-delivered-id"])]
        return {fields[b"key"].decode() for entry, fields in entries if entry in {*unread, *pending}}


def _order(entry: bytes) -> tuple[int, ...]:
    return tuple(map(int, entry.split(b"-")))


@pytest.fixture(scope="module")
def redis_of_ours() -> Any:
    with RedisServer() as server:
        yield server


def test_a_transfer_that_is_killed_at_each_step_moves_the_money_once(
    tmp_path: Path, redis_of_ours: RedisServer
) -> None:
    banks = Banks(tmp_path, redis_of_ours)
    moved = 0
    for number, (point, (debited, in_outbox, at_broker, credited)) in enumerate(POINTS.items()):
        key = f"transfer-{number}"
        banks.killed(point, key)
        assert banks.balances() == (START - moved - debited * AMOUNT, moved + credited * AMOUNT), point
        under_way = banks.waiting(), banks.unacknowledged()
        assert under_way == ({key} if in_outbox else set(), {key} if at_broker else set()), point
        banks.go_on(key)
        moved += AMOUNT
        assert banks.balances() == (START - moved, moved), point
        assert banks.waiting() == banks.unacknowledged() == set(), point
    with pytest.raises(banks.transfer.Refused):
        banks.transfer.debit(banks.payer, "too much", "alice", "bob", START)
    assert (banks.balances(), banks.waiting()) == ((START - moved, moved), set())
