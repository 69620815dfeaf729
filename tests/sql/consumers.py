"""Consumer processes that add amounts to accounts, check nothing, and are killed at named points.

python -m tests.sql.consumers URL LEDGER [--without-inbox]

The ledger is the producer's file: a line for each message, with its key, its amount, and the point at which its first delivery's
process dies, or the number of processes that get it at once. Each delivery has a process of its own, forked here, whose hook
remembers nothing: what a message was worth is up to the inbox alone. Prints the exit codes of the last deliveries.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, NullPool, create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from oncegate import Action, Delivery, Subscription
from oncegate.middleware.consumers.executing import current
from oncegate.sql import Inbox

POINTS = ("before the marker", "after the marker", "after the effect", "after COMMIT", "after the record")
EFFECT = text("UPDATE account SET balance = balance + :amount WHERE name = :name")
PATIENCE = 60

Pay = Callable[[dict[str, Any]], Any]


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(engine: Engine, point: str) -> None:
    """Have the process die at ``point`` of the transaction."""
    marks = "INSERT INTO oncegate_inbox"
    if point == "before the marker":
        event.listen(
            engine, "before_cursor_execute", lambda _c, _u, statement, *_: die() if marks in statement else None
        )
    elif point == "after the marker":
        event.listen(
            engine, "after_cursor_execute", lambda _c, _u, statement, *_: die() if marks in statement else None
        )
    elif point == "after the effect":
        event.listen(engine, "commit", die)  # before it is sent
    elif point == "after COMMIT":
        event.listen(Session, "after_commit", die)


def with_asyncio(url: str, inbox: Inbox | None, point: str) -> Pay:
    engine = create_async_engine(url, poolclass=NullPool)
    arm(engine.sync_engine, point)
    sessions = async_sessionmaker(engine)

    async def pay(message: dict[str, Any], session: AsyncSession) -> Any:
        await session.execute(EFFECT, {"amount": message["amount"], "name": message["key"]})
        return {"amount": message["amount"]}

    async def without(message: dict[str, Any]) -> Any:
        async with sessions.begin() as session:
            return await pay(message, session)

    return without if inbox is None else inbox.transaction(sessions)(pay)


def without_asyncio(url: str, inbox: Inbox | None, point: str) -> Pay:
    options = {"timeout": PATIENCE} if url.startswith("sqlite") else {}
    engine = create_engine(url, poolclass=NullPool, connect_args=options)
    arm(engine, point)
    sessions = sessionmaker(engine)

    def pay(message: dict[str, Any], session: Session) -> Any:
        session.execute(EFFECT, {"amount": message["amount"], "name": message["key"]})
        return {"amount": message["amount"]}

    def without(message: dict[str, Any]) -> Any:
        with sessions.begin() as session:
            return pay(message, session)

    return without if inbox is None else inbox.transaction(sessions)(pay)


async def consume(message: dict[str, Any], pay: Pay, point: str) -> bool:
    """Whether the message may be acknowledged, with the result that is the first delivery's."""
    assert current() == ()
    subscription = Subscription("billing", cache="memory://")
    begun = await subscription.execute(Delivery(message["key"], str(message["amount"])), pay, message)
    if point == "after the record":
        die()
    return begun.action is Action.ACKNOWLEDGE and begun.returned == {"amount": message["amount"]}


def forked(work: Callable[[], Coroutine[Any, Any, bool]]) -> int:
    """The id of a process that does ``work``, and ends with 0 if it is true."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        code = 0 if asyncio.run(work()) else 2
    finally:
        os._exit(code)


def main(url: str, ledger: str, *options: str) -> None:
    inbox = None if "--without-inbox" in options else Inbox("billing", wait_timeout=PATIENCE)
    handler = with_asyncio if "asyncpg" in url or "aiosqlite" in url else without_asyncio

    def deliver(message: dict[str, Any], point: str = "") -> int:
        return forked(lambda: consume(message, handler(url, inbox, point), point))

    codes: dict[str, list[int]] = {}
    for line in Path(ledger).read_text().splitlines():
        message = json.loads(line)
        if message["point"]:
            os.waitpid(deliver(message, message["point"]), 0)
        processes = [deliver(message) for _ in range(message["deliveries"])]
        codes[message["key"]] = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]
    print(json.dumps(codes))  # noqa: T201  # read by the test


if __name__ == "__main__":
    main(*sys.argv[1:])
