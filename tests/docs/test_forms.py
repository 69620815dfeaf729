"""The forms of code that pages recommend, as they stand there, with the fault put in that each page is about.

A process is killed at an instant that the page names, and what is delivered or sent again is compared with what it promises.
Beside it runs what the page warns of: the same form without what it recommends, where the fault shows.
"""

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from signal import SIGKILL
from typing import Any

import httpx
import pytest

from testing import template
from testing.pages import BLOCK
from testing.servers import RedisServer
from testing.uvicorn_app import served_by_uvicorn
from testing.waiting import wait_until

DOCS = Path(__file__).parents[2] / "docs"
IMPORTED = ("oncegate", "oncegate.sql", "oncegate.sql.inbox.create", "sqlalchemy.ext.asyncio", "sqlalchemy.orm")
DIE = """
import os, signal
from sqlalchemy import event
from sqlalchemy.engine import Engine

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def die_at(statement):
    event.listen(Engine, "before_cursor_execute", lambda c, cursor, sql, *_: die() if sql.startswith(statement) else None)

def die_before_commit():
    event.listen(Engine, "commit", die)

def die_after_commit(nth=1):
    from sqlalchemy.orm import Session
    left = [nth]
    def count(session):
        left[0] -= 1
        if not left[0]:
            die()
    event.listen(Session, "after_commit", count)
"""


def form(page: str, word: str) -> str:
    """The program of ``page`` that has ``word`` in it."""
    text = (DOCS / f"{page}.md").read_text("utf-8")
    (found,) = [block for kind, block in BLOCK.findall(text) if kind == "python" and word in block]
    return str(found)


class Folder:
    """A folder in which processes run one after the other, as after a crash."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, *code: str) -> Any:
        """Runs the pieces of ``code`` as one program, to its end; what it printed."""
        done = template.run("-c", "\n".join(code), preloaded=IMPORTED, cwd=self.path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def fails(self, *code: str) -> str:
        """The same for one that an error ends: its text."""
        done = template.run("-c", "\n".join(code), preloaded=IMPORTED, cwd=self.path)
        assert done.returncode == 1, done.stderr
        return str(done.stderr)

    def killed(self, *code: str) -> None:
        """The same for one that has to be killed by itself."""
        done = template.run("-c", "\n".join(code), preloaded=IMPORTED, cwd=self.path)
        assert done.returncode == -SIGKILL, done.stderr

    def query(self, file: str, statement: str) -> list[Any]:
        with closing(sqlite3.connect(self.path / file)) as database:
            return database.execute(statement).fetchall()


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def without(text: str, *, end: str) -> str:
    """``text`` up to the line that begins with ``end``: what is defined, and nothing that is run."""
    head, found, _ = text.partition(f"\n{end}")
    assert found, end
    return head


def changed(text: str, right: str, wrong: str) -> str:
    assert right in text, right
    return text.replace(right, wrong)


# -- docs/inbox.md: a process dies between an effect and its acknowledgement -------------------------------------------

TABLES = """
async def tables():
    async with engine.begin() as connection:
        await connection.run_sync(billing.table(MetaData()).create)
        await connection.execute(text("CREATE TABLE account (balance INTEGER)"))
        await connection.execute(text("INSERT INTO account VALUES (100)"))
asyncio.run(tables())
"""
DELIVER = """
async def deliver():
    async with sessions.begin() as session:
        await pay(session, "order-7", 30)
asyncio.run(deliver())
"""


@pytest.mark.parametrize(
    ("fault", "before"), [("die_before_commit()", 100), ("die_at('UPDATE account')", 100), ("die_after_commit()", 70)]
)
def test_inbox_a_transaction_of_ones_own(folder: Folder, fault: str, before: int) -> None:
    pay = without(form("inbox", "async def pay(session: AsyncSession, key"), end="async def main(")
    folder.run(pay, TABLES)
    folder.killed(pay, DIE, fault, DELIVER)
    assert folder.query("shop.db", "SELECT balance FROM account") == [(before,)]
    for _ in range(2):
        folder.run(pay, DELIVER)
    assert folder.query("shop.db", "SELECT balance FROM account") == [(70,)]


def test_inbox_without_it_the_second_delivery_pays_again(folder: Folder) -> None:
    pay = without(form("inbox", "async def pay(session: AsyncSession, key"), end="async def main(")
    bare = changed(pay, "if entry := await billing.first(session, key):", "if True:").replace(
        "await entry.keep(amount)", "pass"
    )
    folder.run(pay, TABLES)
    folder.killed(bare, DIE, "die_after_commit()", DELIVER)
    folder.run(bare, DELIVER)
    assert folder.query("shop.db", "SELECT balance FROM account") == [(40,)]


HANDLER_TABLES = """
with engine.begin() as connection:
    billing.table(MetaData()).create(connection)
    connection.execute(text("CREATE TABLE account (balance INTEGER)"))
    connection.execute(text("INSERT INTO account VALUES (100)"))
"""
EXECUTE = """
async def deliver():
    subscription = Subscription("billing", cache="memory://")
    begun = await subscription.execute(Delivery("order-7", b"30"), pay, 30)
    assert (begun.action, begun.execution.returned) == (Action.ACKNOWLEDGE, {"paid": 30})
asyncio.run(deliver())
"""


@pytest.mark.parametrize(("fault", "before"), [("die_before_commit()", 100), ("die_after_commit()", 70)])
def test_inbox_around_a_handler(folder: Folder, fault: str, before: int) -> None:
    pay = without(form("inbox", "def pay(amount: int, session: Session)"), end="async def main(")
    folder.run(pay, HANDLER_TABLES)
    folder.killed(pay, DIE, fault, EXECUTE)
    assert folder.query("payments.db", "SELECT balance FROM account") == [(before,)]
    folder.run(pay, EXECUTE)
    assert folder.query("payments.db", "SELECT balance FROM account") == [(70,)]


def test_inbox_a_batch_whose_process_dies_is_paid_once(folder: Folder) -> None:
    batch = form("inbox", "batch=True")
    program = without(batch, end="with engine.begin() as connection:\n    assert connection.scalar")
    made, _, deliver = program.partition("\nwith sessions.begin() as session:  # in a transaction of your own")
    deliver = deliver[deliver.index("@billing.transaction") :]
    define = re.sub(r"(?ms)^with engine.begin\(\) as connection:\n.*?(?=^PAY)", "", made)
    folder.run(made)
    deliver = changed(changed(deliver, "-1, ", "3, "), "== 3\n", "== 4\n")  # all four are processed here
    deliver = re.sub(r"(?m)^    assert done\[2\].*$", "", deliver)
    folder.killed(define, DIE, "die_after_commit()", deliver)
    for _ in range(2):
        assert folder.query("batches.db", "SELECT sum(amount) FROM payment") == [(24,)]
        folder.run(define, deliver)


# -- docs/ordering.md: what comes out of its order ---------------------------------------------------------------------


def test_ordering_of_deltas_latest_loses_what_contiguous_applies(folder: Folder) -> None:
    program = form("ordering", "async def book(session: AsyncSession")
    folder.run(program)
    assert folder.query("ledger.db", "SELECT balance FROM account") == [(9,)]
    (folder.path / "ledger.db").unlink()
    lossy = re.sub(r"(?m)^    assert decisions == .*$", "", changed(program, '"contiguous"', '"latest"'))
    assert "AssertionError" in folder.fails(lossy)
    assert folder.query("ledger.db", "SELECT balance FROM account") == [(6,)], "3 are missing, as the page says"


BOOK = """
async def main():
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE IF NOT EXISTS account (balance INTEGER)"))
        await connection.execute(text("INSERT INTO account SELECT 0 WHERE NOT EXISTS (SELECT * FROM account)"))
    for number, amount in [(1, 5), (2, 3)]:
        async with sessions.begin() as session:
            await book(session, "account-7", number, amount)
asyncio.run(main())
"""


@pytest.mark.parametrize("nth", [1, 2])
def test_ordering_a_number_advances_exactly_when_its_effect_is_committed(folder: Folder, nth: int) -> None:
    book = without(form("ordering", "async def book(session: AsyncSession"), end="async def main(")
    define = changed(book, "create(URL, None)", "__import__('os').path.exists('ledger.db') or create(URL, None)")
    folder.killed(define, DIE, f"die_after_commit({nth})", BOOK)
    assert folder.query("ledger.db", "SELECT balance FROM account") == [({1: 5, 2: 8}[nth],)]
    folder.run(define, BOOK)
    assert folder.query("ledger.db", "SELECT balance FROM account") == [(8,)]


PARKED = """
async def deliver(*given):
    subscription = Subscription("ledger", cache="memory://")
    for number, amount in given:
        delivery = Delivery(f"event-{number}", b"", aggregate="account-7", sequence=number)
        begun = await subscription.execute(delivery, book, amount)
        assert begun.action is Action.ACKNOWLEDGE
"""


def test_ordering_what_was_parked_by_a_process_that_died_is_run_in_its_turn(folder: Folder) -> None:
    book = without(form("ordering", "def book(amount: int, session: Session)"), end="async def main(")
    define = changed(
        book,
        'create("sqlite:///parked.db", None)',
        "if not __import__('os').path.exists('parked.db'):\n    create('sqlite:///parked.db', None)",
    )
    folder.run(define, 'with engine.begin() as c: c.execute(text("CREATE TABLE booked (amount INTEGER)"))')
    folder.killed(define, DIE, PARKED, "asyncio.run(deliver((3, 30), (2, 20))); die()")
    assert folder.query("parked.db", "SELECT amount FROM booked") == []
    folder.run(define, PARKED, "asyncio.run(deliver((1, 10)))")
    assert folder.query("parked.db", "SELECT amount FROM booked") == [(10,), (20,), (30,)]


def test_ordering_who_joins_later_without_the_snapshot_s_number_waits_for_what_never_comes(folder: Folder) -> None:
    program = form("ordering", "balances.seed(")
    folder.run(program)
    (folder.path / "joined.db").unlink()
    unseeded = changed(program, 'assert balances.seed(connection, "account-7", 40)', "pass")
    assert "SequenceEarly" in folder.fails(unseeded)


# -- docs/outbox.md: a process dies between a change and its message ---------------------------------------------------

SHOP = """
async def tables():
    async with engine.begin() as connection:
        for table in orders.tables(MetaData()):
            await connection.run_sync(table.create)
        await connection.execute(text("CREATE TABLE orders (id TEXT PRIMARY KEY, amount INTEGER)"))
asyncio.run(tables())
"""
PLACE = """
async def order():
    async with sessions.begin() as session:
        await place(session, "order-7", 30)
asyncio.run(order())
"""
RELAY = """
async def relay(dies=False):
    gone = []
    async def publish(message):
        with open("published", "a") as ledger:
            ledger.write(f"{message.key} {message.sequence}\\n")
        if dies:
            die()
        gone.append(message)
    async with Relay(engine, publish).running():
        while not gone:
            await asyncio.sleep(0.01)
"""


def test_outbox_an_order_and_its_message_are_there_together_or_not_at_all(folder: Folder) -> None:
    place = without(form("outbox", "async def place("), end="async def main(")
    folder.run(place, SHOP)
    for fault in ("die_at('INSERT INTO oncegate_outbox')", "die_before_commit()"):
        folder.killed(place, DIE, fault, PLACE)
        assert folder.query("shop.db", "SELECT id FROM orders") == []
        assert folder.query("shop.db", "SELECT key FROM oncegate_outbox") == []
    folder.killed(place, DIE, "die_after_commit()", PLACE)
    ((key,),) = folder.query("shop.db", "SELECT key FROM oncegate_outbox")
    folder.killed(place, DIE, RELAY, "asyncio.run(relay(dies=True))")
    folder.run(place, RELAY, "asyncio.run(relay())")
    published = (folder.path / "published").read_text().splitlines()
    assert published == [f"{key} 1"] * 2, "at least once, under one key and number"
    assert folder.query("shop.db", "SELECT key FROM oncegate_outbox") == []


# -- docs/subscriptions.md: duplicates, and a process that dies around its handler -------------------------------------

HANDED = {
    "handler": ("@ledger.handler(describe)", 'book({"headers": {"idempotency-key": "order-7"}, "body": b"5"})'),
    "loop": ("async for attempt in once:", 'consume("order-7", b"5")'),
}
ON_REDIS = """
from oncegate import RedisCache, SubscriptionSettings
class Written(list):
    def append(self, value):
        with open("effects", "ab") as effects:
            effects.write(value + b"\\n")
        if DIES:
            import os, signal
            os.kill(os.getpid(), signal.SIGKILL)
"""


def on_redis(text: str, url: str, *, dies: bool) -> str:
    """The form with records that outlive its process, whose effects are lines of a file; it ``dies`` after one."""
    shared = f"cache=RedisCache.from_url({url!r}, timeout=30), settings=SubscriptionSettings(lease=2)"
    text = changed(text, "cache=MemoryCache()", shared)
    return f"DIES = {dies}\n" + ON_REDIS + re.sub(r"(?m)^entries: .*$", "entries = Written()", text)


@pytest.mark.parametrize("kind", [*HANDED])
def test_subscriptions_a_duplicate_is_skipped_by_the_next_process(folder: Folder, kind: str) -> None:
    """What is killed after its effect has the window that the page names: its lease lapses, and it is the second attempt."""
    word, call = HANDED[kind]
    text = without(form("subscriptions", word), end="async def main(")
    deliver = f"""
async def deliver():
    while True:
        given = await {call}
        action = getattr(given, "action", given)
        if action is not Action.REDELIVER:
            return print(action.value)
        await asyncio.sleep(0.1)
asyncio.run(deliver())
"""
    with RedisServer() as server:
        folder.killed(on_redis(text, server.url, dies=True), deliver)
        for _ in range(2):
            assert folder.run(on_redis(text, server.url, dies=False), deliver) == "acknowledge\n"
    assert (folder.path / "effects").read_bytes() == b"5\n" * 2


# -- docs/functions.md: a job whose process dies -----------------------------------------------------------------------


def test_functions_a_call_after_a_kill_does_not_execute_again(folder: Folder) -> None:
    text = without(form("functions", "def charge(order: Order"), end="assert charge(")
    with RedisServer() as server:
        define = changed(text, '"memory://"', f"{server.url!r}")
        dying = changed(define, "    return f", "    import os; os.kill(os.getpid(), 9)\n    return f")
        folder.killed(dying, 'charge(Order("a", 5))')
        assert "InFlightError" in folder.fails(define, 'charge(Order("a", 5))')
        folder.run(define, 'assert charge(Order("b", 5)) == "payment 1"')
        folder.run(define, 'assert charge(Order("b", 5)) == "payment 1"; assert not paid')


def test_functions_a_job_without_its_key_sends_each_delivery(folder: Folder) -> None:
    text = form("functions", "async def send_invoice(")
    folder.run(text)
    bare = re.sub(r"(?ms)^@idempotent\(\n.*?^\)\n", "", text)
    assert "AssertionError" in folder.fails(bare)


# -- docs/fastapi.md: a commit that is killed behind its response ------------------------------------------------------

DIES_IN_COMMIT = """
import os, signal
from sqlalchemy import event
from sqlalchemy.orm import Session as Synchronous

@event.listens_for(Synchronous, "before_commit")
def die(_):
    if os.path.exists("paid"):
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("scope", "complete", "rows"),
    [
        ('Depends(session, scope="function")', "auto", 1),
        ("Depends(session)", "auto", 1),
        ("Depends(session)", "response", 0),
    ],
    ids=["as the page says", "the default keeps it", "what the page warns of"],
)
def test_fastapi_a_payment_whose_commit_is_killed_is_made_by_the_retry(
    tmp_path: Path, scope: str, complete: str, rows: int
) -> None:
    text = without(form("fastapi", "class Payment(Base)"), end="with TestClient(app)")
    text = changed(text, 'Depends(session, scope="function")', scope)
    rules = f'on_missing_key="reject", complete="{complete}", on_unknown="retry", lease=2'
    text = changed(text, 'on_missing_key="reject"', rules)
    dying = changed(text, "    await db.flush()\n", "    await db.flush()\n    open('paid', 'w').close()\n")
    with RedisServer() as server:
        for name, program in (("dying", dying + DIES_IN_COMMIT), ("shop", text)):
            (tmp_path / f"{name}.py").write_text(changed(program, '"memory://"', f'"{server.url}"'))
        key = {"Idempotency-Key": "order-1"}
        with served_by_uvicorn("dying:app", tmp_path, ready="/payments") as client:
            try:
                first = client.post("/payments?amount=30", headers=key).status_code
            except httpx.TransportError:
                first = None
        assert first is None or complete == "response", "nobody has a 201 for what is not committed"
        assert (tmp_path / "paid").exists()
        with closing(sqlite3.connect(tmp_path / "payments.db")) as database:
            assert database.execute("SELECT * FROM payment").fetchall() == []
        with served_by_uvicorn("shop:app", tmp_path, ready="/payments") as client:
            url = "/payments?amount=30"
            wait_until(lambda: client.post(url, headers=key).status_code == 201, "the retry is answered")
            assert client.get("/payments").json() == rows
