"""Consumer processes that add amounts to accounts, check nothing, and are killed at named points.

python -m tests.sql.consumers URL LEDGER [--without-inbox] [CACHE]

The ledger is the producer's file: a line for each message, with its key, its amount, and the point at which its first delivery's
process dies or stands still, or the number of processes, and of threads in each, that get it at once. Each delivery has a process
of its own, forked here. Its hook remembers nothing, so that what a message was worth is up to the inbox alone; or it has its
records in CACHE, a Redis. Prints the exit codes of the last deliveries.
"""

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event, text
from sqlalchemy.orm import Session

from oncegate import Action, Delivery, Subscription, SubscriptionSettings
from oncegate.cache.open import open_cache
from oncegate.middleware.consumers.handlers.handling import current
from oncegate.sql import Inbox
from tests.sql.places import place_of

POINTS = ("before the marker", "after the marker", "after the effect", "after COMMIT", "after the record")
STANDS_STILL = "stands still before COMMIT"
IDLE = 0.5
"""Seconds after which the server ends the transaction of one that stands still."""
LEASE = 1.0
"""Seconds for which a dead consumer's message is kept from others by a cache that remembers."""
EFFECT = text("UPDATE account SET balance = balance + :amount WHERE name = :name")
PATIENCE = 60
FORGETS = "memory://"

Pay = Callable[[dict[str, Any]], Any]


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stand_still(*_: object) -> None:
    # To this thread: of a process, the kernel may choose another one, and this one goes on for a while.
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def die_at_marker(_c: object, _u: object, statement: str, *_: object) -> None:
    if "INSERT INTO oncegate_inbox" in statement:
        die()


def arm(engine: Engine, point: str) -> None:
    """Have the process die, or stand still, at ``point`` of the transaction."""
    listeners: dict[str, tuple[Any, str, Callable[..., None]]] = {
        "before the marker": (engine, "before_cursor_execute", die_at_marker),
        "after the marker": (engine, "after_cursor_execute", die_at_marker),
        "after the effect": (engine, "commit", die),  # before it is sent
        STANDS_STILL: (engine, "commit", stand_still),
        "after COMMIT": (Session, "after_commit", die),
    }
    if point in listeners:
        event.listen(*listeners[point])


def handler(url: str, inbox: Inbox | None, point: str) -> Pay:
    """Adds a message's amount to its account, in the inbox's transaction, or in one of its own."""
    place = place_of(url, connect_args={"timeout": PATIENCE} if url.startswith("sqlite") else {})
    arm(place.sync_engine, point)

    def pay(session: Session, message: dict[str, Any]) -> Any:
        session.execute(EFFECT, {"amount": message["amount"], "name": message["key"]})
        return {"amount": message["amount"]}

    if inbox is not None:
        return place.handler(inbox, pay)
    return lambda message: place.run(lambda session: pay(session, message))


async def consume(message: dict[str, Any], pay: Pay, point: str, cache: str) -> bool:
    """Whether the message may be acknowledged, with the result that is the first delivery's where the hook has called for it."""
    assert current() == ()
    settings = SubscriptionSettings(lease=LEASE, max_attempts=1000)
    records = open_cache(cache, timeout=PATIENCE)  # a Redis that is there answers, however slow the machine is
    subscription = Subscription("billing", cache=records, namespace=message["key"].replace(" ", "-"), settings=settings)
    while True:
        begun = await subscription.execute(Delivery(message["key"], str(message["amount"])), pay, message)
        if begun.action is not Action.REDELIVER or cache == FORGETS or point:
            break
        await asyncio.sleep(0.05)  # another one has it, or had it when it died
    if point == "after the record":
        die()
    await subscription.cache.close()
    kept = not begun.run or begun.execution.returned == {"amount": message["amount"]}
    return begun.action is Action.ACKNOWLEDGE and kept


def forked(work: Callable[[], bool]) -> int:
    """The id of a process that does ``work``, and ends with 0 if it is true."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        code = 0 if work() else 2
    finally:
        os._exit(code)


def exit_code(process: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def main(url: str, ledger: str, *options: str) -> None:
    without_inbox = "--without-inbox" in options
    cache = next((each for each in options if "://" in each), FORGETS)

    def deliver(message: dict[str, Any], point: str = "") -> int:
        idle = IDLE if point == STANDS_STILL else PATIENCE
        inbox = None if without_inbox else Inbox("billing", wait_timeout=PATIENCE, idle_timeout=idle)

        def in_a_thread(_: int) -> bool:
            return asyncio.run(consume(message, handler(url, inbox, point), point, cache))

        def work() -> bool:
            with ThreadPoolExecutor(message["threads"]) as threads:
                return all(threads.map(in_a_thread, range(message["threads"])))

        return forked(work)

    codes: dict[str, list[int]] = {}
    for line in Path(ledger).read_text().splitlines():
        message = json.loads(line)
        if message["point"] == STANDS_STILL:
            late = deliver(message, STANDS_STILL)
            os.waitpid(late, os.WUNTRACED)
            codes[message["key"]] = [exit_code(deliver(message))]
            os.kill(late, signal.SIGCONT)
            codes[message["key"]] += [exit_code(late), exit_code(deliver(message))]
            continue
        if message["point"]:
            died = exit_code(deliver(message, message["point"])) == -signal.SIGKILL
            assert died or (without_inbox and "marker" in message["point"])
        processes = [deliver(message) for _ in range(message["deliveries"])]
        codes[message["key"]] = [exit_code(process) for process in processes]
    print(json.dumps(codes))  # noqa: T201  # read by the test


if __name__ == "__main__":
    main(*sys.argv[1:])
