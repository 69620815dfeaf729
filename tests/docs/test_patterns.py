"""The examples of docs/patterns run twice, at the same time, and killed half way; what they leave is looked at from outside."""

import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from runpy import run_path
from signal import SIGKILL
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from testing import pages
from testing.command_line import running
from tests.docs import test_queue, test_transfer
from tests.sql.projections import recipes

PATTERNS = Path(__file__).parents[2] / "docs" / "patterns"
PAGES = sorted(path.stem for path in PATTERNS.glob("*.md") if path.stem != "README")
THREADS = 8

DIES_AT = """
import os, signal, sys
sys.path.insert(0, {folder!r})
from patterns import connect
db = connect({path!r})
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
def die_at(statement):
    db.set_trace_callback(lambda sql: die() if sql.startswith(statement) else None)
"""
"""`die_at` kills the process right before the database sees a statement."""


class Example:
    """One page's example, its database, and processes that die in it."""

    def __init__(self, page: str, folder: Path) -> None:
        self.folder = folder
        self.path = str(folder / "data.sqlite")
        name = ""
        for source in ("README", page):
            for kind, block in pages.BLOCK.findall((PATTERNS / f"{source}.md").read_text("utf-8")):
                found = pages.FILE.match(block)
                assert kind == "python", page
                if found:
                    name = found[1]
                    (folder / name).write_text(block)
        self.name = name.removesuffix(".py")
        self.module = SimpleNamespace(**run_path(str(folder / name)))
        self.connect: Callable[[str], sqlite3.Connection] = run_path(str(folder / "patterns.py"))["connect"]
        self.db = self.connect(self.path)
        self.db.executescript(self.module.SCHEMA)

    def at_once(self, run: Callable[[sqlite3.Connection], Any]) -> list[Any]:
        """What ``run`` returned to each of several threads, each on its own connection."""

        def one(_: int) -> Any:
            db = self.connect(self.path)
            try:
                return run(db)
            finally:
                db.close()

        with ThreadPoolExecutor(THREADS) as threads:
            return list(threads.map(one, range(THREADS)))

    def killed(self, code: str) -> None:
        """Runs ``code`` with the example's names in a process that has to be killed by it."""
        start = DIES_AT.format(folder=str(self.folder), path=self.path) + f"from {self.name} import *\n"
        done = subprocess.run([sys.executable, "-c", start + code], capture_output=True, text=True, timeout=30)
        assert done.returncode == -SIGKILL, done.stderr

    def all(self, query: str) -> Any:
        return self.db.execute(query).fetchall()


@pytest.fixture
def example(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Example]:
    example = Example(request.param, tmp_path)
    yield example
    example.db.close()


def of(page: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("example", [page], indirect=True)


# -- set, don't add ---------------------------------------------------------------------------------------------------


@of("set-based")
def test_setting_twice_is_setting_once(example: Example) -> None:
    example.at_once(lambda db: example.module.set_count(db, "apple", 12, 1))
    example.at_once(lambda db: example.module.add_tag(db, "apple", "fruit"))
    assert example.all("SELECT * FROM stock") == [("apple", 12, 1)]
    assert example.all("SELECT * FROM tag") == [("apple", "fruit")]


@of("set-based")
def test_an_old_count_that_comes_again_does_not_replace_a_new_one(example: Example) -> None:
    for counted, as_of in ((12, 1), (9, 2), (12, 1)):
        example.module.set_count(example.db, "apple", counted, as_of)
    assert example.all("SELECT counted FROM stock") == [(9,)]


@of("set-based")
def test_a_kill_before_the_write_leaves_it_to_the_next_run(example: Example) -> None:
    example.killed("die_at('INSERT INTO stock'); set_count(db, 'apple', 12, 1)")
    assert example.all("SELECT * FROM stock") == []
    example.module.set_count(example.db, "apple", 12, 1)
    assert example.all("SELECT counted FROM stock") == [(12,)]


# -- create once ------------------------------------------------------------------------------------------------------


@of("create-once")
def test_one_account_is_opened_by_one_key(example: Example) -> None:
    numbers = example.at_once(lambda db: example.module.open_account(db, "k1", "ann"))
    assert len(set(numbers)) == 1
    assert example.module.open_account(example.db, "k2", "ann") not in numbers
    assert example.all("SELECT count(*) FROM account") == [(2,)]


@of("create-once")
def test_a_kill_after_the_insert_leaves_the_account_to_be_found(example: Example) -> None:
    example.killed("die_at('SELECT id'); open_account(db, 'k1', 'ann')")
    assert example.module.open_account(example.db, "k1", "ann") == 1
    assert example.all("SELECT owner FROM account") == [("ann",)]


@of("create-once")
def test_the_key_of_another_command_is_refused(example: Example) -> None:
    example.module.open_account(example.db, "k1", "ann")
    with pytest.raises(example.module.KeyReused):
        example.module.open_account(example.db, "k1", "bob")


# -- status flag ------------------------------------------------------------------------------------------------------


def an_open_order(example: Example) -> None:
    example.db.executescript(
        "INSERT INTO orders (id, status) VALUES ('o1', 'open'); INSERT INTO account VALUES ('a1', 0);"
    )


@of("status-flag")
def test_an_order_is_cancelled_and_refunded_once(example: Example) -> None:
    an_open_order(example)
    assert sorted(example.at_once(lambda db: example.module.cancel(db, "o1", "a1", 30))) == [False] * (THREADS - 1) + [
        True
    ]
    assert example.all("SELECT status, balance FROM orders, account") == [("cancelled", 30)]


@of("status-flag")
@pytest.mark.parametrize("statement", ["UPDATE account", "COMMIT"])
def test_a_kill_within_undoes_flag_and_refund_together(example: Example, statement: str) -> None:
    an_open_order(example)
    example.killed(f"die_at({statement!r}); cancel(db, 'o1', 'a1', 30)")
    assert example.all("SELECT status, balance FROM orders, account") == [("open", 0)]
    assert example.module.cancel(example.db, "o1", "a1", 30)
    assert example.all("SELECT status, balance FROM orders, account") == [("cancelled", 30)]


# -- expected version -------------------------------------------------------------------------------------------------


@of("expected-version")
def test_a_delta_applies_to_the_version_it_was_decided_on(example: Example) -> None:
    example.db.execute("INSERT INTO product VALUES ('p1', 100, 7)")
    done = example.at_once(lambda db: example.module.raise_price(db, "p1", 5, 7))
    assert sorted(done) == [False] * (THREADS - 1) + [True]
    assert example.all("SELECT price, version FROM product") == [(105, 8)]


@of("expected-version")
def test_a_change_decided_on_an_old_version_does_nothing(example: Example) -> None:
    example.db.execute("INSERT INTO product VALUES ('p1', 100, 8)")
    assert not example.module.raise_price(example.db, "p1", 5, 7)
    assert example.all("SELECT price FROM product") == [(100,)]


@of("expected-version")
def test_killed_after_the_change_the_next_run_finds_it_made(example: Example) -> None:
    example.db.execute("INSERT INTO product VALUES ('p1', 100, 7)")
    example.killed("raise_price(db, 'p1', 5, 7); die()")
    assert not example.module.raise_price(example.db, "p1", 5, 7)
    assert example.all("SELECT price FROM product") == [(105,)]


# -- processed keys ---------------------------------------------------------------------------------------------------


@of("processed-keys")
def test_a_deposit_is_made_once_per_key(example: Example) -> None:
    example.db.execute("INSERT INTO account (id, balance) VALUES ('a1', 0)")
    done = example.at_once(lambda db: example.module.deposit(db, "a1", "k1", 10))
    assert sorted(done) == [False] * (THREADS - 1) + [True]
    assert example.module.deposit(example.db, "a1", "k2", 10)
    assert example.all("SELECT balance FROM account") == [(20,)]


@of("processed-keys")
def test_a_kill_before_the_commit_leaves_neither_money_nor_key(example: Example) -> None:
    example.db.execute("INSERT INTO account (id, balance) VALUES ('a1', 0)")
    example.killed("die_at('COMMIT'); deposit(db, 'a1', 'k1', 10)")
    assert example.all("SELECT balance, processed FROM account") == [(0, "[]")]
    assert example.module.deposit(example.db, "a1", "k1", 10)


@of("processed-keys")
def test_the_bound_is_what_the_page_says(example: Example) -> None:
    example.db.execute("INSERT INTO account (id, balance) VALUES ('a1', 0)")
    deposit, kept = example.module.deposit, example.module.KEPT
    deposit(example.db, "a1", "first", 1)
    for number in range(kept - 1):
        deposit(example.db, "a1", f"k{number}", 1)
    assert not deposit(example.db, "a1", "first", 1)
    deposit(example.db, "a1", "one more", 1)
    assert deposit(example.db, "a1", "first", 1), "pushed out, and executed again"


# -- outbox -----------------------------------------------------------------------------------------------------------


@of("outbox")
def test_an_order_is_placed_and_told_of_once(example: Example) -> None:
    placed = example.at_once(lambda db: example.module.place(db, "o1", 30))
    assert sorted(placed) == [False] * (THREADS - 1) + [True]
    sent: list[tuple[str, str]] = []
    assert example.module.relay(example.db, lambda *message: sent.append(message)) == 1
    assert example.module.relay(example.db, lambda *message: sent.append(message)) == 0
    assert [message for _, message in sent] == ["o1"]


@of("outbox")
@pytest.mark.parametrize("statement", ["INSERT INTO outbox", "COMMIT"])
def test_a_kill_within_leaves_neither_order_nor_message(example: Example, statement: str) -> None:
    example.killed(f"die_at({statement!r}); place(db, 'o1', 30)")
    assert example.all("SELECT * FROM orders") == example.all("SELECT * FROM outbox") == []
    assert example.module.place(example.db, "o1", 30)
    assert len(example.all("SELECT * FROM outbox")) == 1


@of("outbox")
def test_killed_after_publishing_it_publishes_again_under_the_same_key(example: Example) -> None:
    example.module.place(example.db, "o1", 30)
    ledger = example.folder / "published"
    publish = f"lambda key, message: open({str(ledger)!r}, 'w').write(key)"
    example.killed(f"die_at('DELETE'); relay(db, {publish})")
    again: list[str] = []
    example.module.relay(example.db, lambda key, _: again.append(key))
    assert again == [ledger.read_text()]
    assert example.all("SELECT * FROM outbox") == []


# -- pass the key through ---------------------------------------------------------------------------------------------


@of("pass-through-key")
def test_killed_after_the_api_has_charged_it_charges_no_second_time(example: Example) -> None:
    with running("demo", "--port", "0") as demo:
        demo.wait_for("Listening")
        url = demo.wait_for(r"oncegate in front of it on (http://[^ ]+?)\.?\n")[1]
        client = f"httpx.Client(base_url={url!r})"
        example.killed(f"die_at('INSERT INTO payment'); charge(db, {client}, 'evt_1', 'o1', 30)")
        assert example.all("SELECT * FROM payment") == []
        with httpx.Client(base_url=url) as api:
            payment = example.module.charge(example.db, api, "evt_1", "o1", 30)
            assert example.module.charge(example.db, api, "evt_1", "o1", 30) == payment
            assert [made["id"] for made in api.get("/payments").json()] == [payment]
        assert example.all("SELECT * FROM payment") == [("o1", payment)]


# -- the pages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES)
def test_every_pattern_is_in_the_table_and_has_its_trap(page: str) -> None:
    index = (PATTERNS / "README.md").read_text("utf-8")
    assert re.search(rf"^\| \[[^]]+\]\({page}\.md\) \|", index, re.M), page
    assert re.search(r"\*\*The traps?\.?\*\*", (PATTERNS / f"{page}.md").read_text("utf-8")), page


@pytest.mark.parametrize("page", PAGES)
def test_every_block_that_is_no_file_runs_by_itself(page: str, tmp_path: Path) -> None:
    for kind, block in pages.BLOCK.findall((PATTERNS / f"{page}.md").read_text("utf-8")):
        assert kind == "python"
        if file := pages.FILE.match(block):
            (tmp_path / file[1]).write_text(block)
        else:
            done = subprocess.run(
                [sys.executable, "-c", block], capture_output=True, text=True, cwd=tmp_path, timeout=30
            )
            assert done.returncode == 0, done.stderr


def test_every_pattern_has_its_example_run() -> None:
    used = set(re.findall(r'^@of\("([\w-]+)"\)$', Path(__file__).read_text("utf-8"), re.M))
    assert used | {test_transfer.PAGE, test_queue.PAGE} | set(recipes.PAGES) == set(PAGES)
