"""examples/celery_payments.py: sent twice, delivered again, and its worker killed between the effect and the record."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from signal import SIGKILL

import pytest

from testing.servers import RedisServer, bound
from testing.waiting import wait_until
from tests.brokers.conftest import WITHIN

EXAMPLES = Path(__file__).parents[2] / "examples"
DIES = """
import os, signal
import celery_payments as example

book = example.book

def book_and_die(order, amount):
    book(order, amount)
    if order == "dies":
        os.kill(os.getpid(), signal.SIGKILL)

example.book = book_and_die
app = example.app
"""
"""The example, whose worker is killed when the payment is made and not yet recorded."""
SEND = "import sys, celery_payments as example; [example.pay.delay(each, 30) for each in sys.argv[1:]]"


class Shop:
    """The example in a folder of its own."""

    def __init__(self, folder: Path, rabbitmq: str, redis: str) -> None:
        self.folder = folder
        (folder / "dying.py").write_text(DIES)
        self._environment = os.environ | {
            "BROKER": rabbitmq,
            "RECORDS": redis,
            "LEASE": "2",
            "PYTHONPATH": f"{EXAMPLES}:{folder}",
        }

    def send(self, *orders: str) -> None:
        done = subprocess.run(
            [sys.executable, "-c", SEND, *orders],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr

    @contextmanager
    def worker(self, module: str) -> Iterator["subprocess.Popen[bytes]"]:
        """One that executes in its own process, so that it is the one that dies."""
        command = [sys.executable, "-m", "celery", "-A", module, "worker", "--pool", "solo", "--without-mingle"]
        command += ["--without-gossip", "--loglevel", "INFO"]
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                bound(*command), cwd=self.folder, env=self._environment, stdout=log, stderr=subprocess.STDOUT
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def booked(self) -> list[str]:
        if not (self.folder / "charges.sqlite3").exists():
            return []
        with closing(sqlite3.connect(self.folder / "charges.sqlite3")) as database:
            return [name for (name,) in database.execute("SELECT name FROM charge ORDER BY id")]


@pytest.mark.timeout(300)
def test_each_order_is_charged_once_also_where_its_worker_dies(tmp_path: Path, rabbit_broker_url: str) -> None:
    with RedisServer() as redis:
        shop = Shop(tmp_path, rabbit_broker_url, redis.url)
        shop.send("a", "a", "dies")
        with shop.worker("dying") as dying:
            assert dying.wait(WITHIN) == -SIGKILL, shop.log
        assert shop.booked() == ["a", "dies"]
        with shop.worker("celery_payments"):
            wait_until(lambda: "OutcomeUnknownError" in shop.log, "it was delivered again, and somebody is to look")
            shop.send("dies", "a", "b")
            wait_until(lambda: shop.log.count("OutcomeUnknownError: ") >= 2 and "b" in shop.booked(), "all have ended")
        assert shop.booked() == ["a", "dies", "b"]
