"""Celery tasks that take effect once, however often they are sent or delivered, and whichever worker dies.

pip install '/path/to/the/checkout' celery
BROKER=amqp://guest:guest@host/ RECORDS=redis://host/0 celery -A celery_payments worker
"""

import os
import sqlite3
import sys

try:
    from celery import Celery, Task
except ImportError:
    sys.exit("Celery is not installed: pip install celery")

from oncegate import CacheUnavailable, IdempotencySettings, InFlightError, idempotent

if missing := [name for name in ("BROKER", "RECORDS") if not os.environ.get(name)]:
    sys.exit(f"{', '.join(missing)} is not set: BROKER=amqp://guest:guest@host/ RECORDS=redis://host/0")

app = Celery("payments", broker=os.environ["BROKER"])
# Acknowledged once it is done: a task whose worker dies is delivered again.
app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True, broker_connection_retry_on_startup=True)


# Records are in a Redis that all workers share. A worker that is silent for `lease` seconds is taken for dead.
@idempotent(
    key=lambda order: order,
    cache=os.environ["RECORDS"],
    name="charge",
    settings=IdempotencySettings(lease=float(os.environ.get("LEASE", "30"))),
)
def charge(order: str, amount: int) -> int:
    """The effect: it is begun once for each order, unless it is known to have failed."""
    return book(order, amount)


def book(order: str, amount: int) -> int:
    """A payment's number."""
    with sqlite3.connect("charges.sqlite3") as database:
        database.execute("CREATE TABLE IF NOT EXISTS charge (id INTEGER PRIMARY KEY, name TEXT, amount INTEGER)")
        made = database.execute("INSERT INTO charge (name, amount) VALUES (?, ?)", (order, amount)).lastrowid
    database.close()
    return int(made or 0)


@app.task(bind=True, max_retries=None)  # type: ignore[untyped-decorator]  # Celery has no types
def pay(self: Task, order: str, amount: int) -> int:
    """Sent twice, or delivered again: the same number. Where a worker died, an `OutcomeUnknownError`, for a person to look at."""
    try:
        return charge(order, amount)
    except InFlightError as running:  # elsewhere, or by a worker that has died
        raise self.retry(exc=running, countdown=running.retry_after) from None
    except CacheUnavailable as away:
        raise self.retry(exc=away, countdown=5) from None
