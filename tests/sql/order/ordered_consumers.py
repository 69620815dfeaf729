"""Consumer processes that apply messages in their order, and are killed at named points.

python -m tests.sql.order.ordered_consumers URL

Each step is a process of its own, forked here, whose hook remembers nothing. Prints how each of them ended.
"""

import asyncio
import json
import sys
from functools import partial
from typing import Any

from sqlalchemy import NullPool, create_engine, event, text
from sqlalchemy.orm import Session, sessionmaker

from oncegate import Action, Delivery, Subscription, SubscriptionSettings
from oncegate.sql import Inbox
from oncegate.sql.order.waiting import OrderTables
from tests.sql.consumers import PATIENCE, die, exit_code, forked
from tests.sql.held import swept
from tests.sql.places import EFFECT

STEPS: dict[str, list[tuple[str, Any, int]]] = {
    "after parking": [("deliver", 2, 1), ("deliver", 2, 0), ("deliver", 1, 0)],
    "after the first, before the parked one": [("deliver", 2, 0), ("deliver", 1, 1), ("deliver", 1, 0)],
    "in the sweep": [
        ("deliver", 2, 0), ("deliver", 3, 0), ("deliver", 1, 1), ("sweep", "begin", 1), ("sweep", "commit", 2), ("sweep", "", 0),
    ],
    "in its last attempt": [("deliver", 2, 0), ("last", 1, 1), ("retry", 1, 0)],
    "in each attempt while it is parked": [
        ("deliver", 2, 0), ("deliver", 3, 0), ("deliver", 1, 1), ("sweep", "begin", 1), ("sweep", "begin", 1), ("sweep", "", 0),
        ("retry", 2, 0),
    ],
}  # fmt: skip
"""By aggregate: what its processes do, with which number or up to which point, and after how many commits they die."""


def run(url: str, aggregate: str, kind: str, what: Any, commits: int) -> bool:
    engine = create_engine(url, poolclass=NullPool, connect_args={"timeout": PATIENCE} if "sqlite" in url else {})
    ledger = Inbox("ledger", order="contiguous", max_attempts=2, wait_timeout=PATIENCE)
    done: list[object] = []
    dies_inside = what == "begin" or kind == "last"

    def on_commit(*_: object) -> None:
        done.append(None)
        if len(done) == commits:
            die()

    @ledger.transaction(sessionmaker(engine))
    def apply(number: int, session: Session) -> None:
        session.execute(EFFECT, {"what": f"{aggregate}: {number}"})
        if dies_inside:
            die()

    if commits and not dies_inside:
        event.listen(Session, "after_commit", on_commit)

    async def work() -> bool:
        settings = SubscriptionSettings(max_attempts=1 if kind == "last" else 5)
        subscription = Subscription("ledger", cache="memory://", settings=settings)
        if kind in ("sweep", "retry"):
            subscription.only(apply)
            await swept(ledger)
            return True
        delivery = Delivery(f"{aggregate}-{what}", b"p", aggregate=aggregate, sequence=what)
        return (await subscription.execute(delivery, apply, what)).action is Action.ACKNOWLEDGE

    if kind == "retry":
        (waiting,) = OrderTables(None).waiting(url)
        assert (waiting.aggregate, waiting.waits_for, waiting.behind) == (aggregate, what, 1)
        assert waiting.attempts == what, "the first by the hook's settings, the second by the inbox's"
        assert waiting.record
        assert waiting.reason == "its last attempt has not ended: it is at work, or its process has died"
        OrderTables(None).retry(url, "ledger", aggregate)
    with engine.begin() as connection:  # the pause after a death is over
        connection.execute(text("UPDATE oncegate_parked SET due_at = parked_at"))
    return asyncio.run(work())


def main(url: str) -> None:
    ends: dict[str, list[int]] = {}
    for aggregate, steps in STEPS.items():
        for kind, what, commits in steps:
            work = partial(run, url, aggregate, kind, what, commits)
            ends.setdefault(aggregate, []).append(exit_code(forked(work)))
    print(json.dumps(ends))  # noqa: T201  # read by the test


if __name__ == "__main__":
    main(*sys.argv[1:])
