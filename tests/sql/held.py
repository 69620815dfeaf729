"""A first delivery that is held in the middle of its transaction, while others come."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from oncegate.sql import Inbox, Relay
from testing.inside import maintenance_of
from testing.waiting import wait_until
from tests.sql.places import Outcome, Place

PATIENT = 60.0
"""Seconds for waits that must only not hang: what is shown is not how slow a machine may be."""


class Pool(ThreadPoolExecutor):
    """Threads for deliveries. A test that fails leaves none of them held."""

    def __init__(self) -> None:
        super().__init__(16)
        self.held: list[Held] = []

    def __exit__(self, *exc: Any) -> None:
        for held in self.held:
            held.release()
        super().__exit__(*exc)


class Held:
    """A first delivery in a thread, held after its effect and before its commit."""

    def __init__(self, place: Place, inbox: Inbox, key: str, pool: Pool, **options: Any) -> None:
        self._entered, self._released = threading.Event(), threading.Event()
        self._error: Exception | None = None
        self.outcome: Future[Outcome] = pool.submit(place.deliver, inbox, key, effect=self._hold, **options)
        pool.held.append(self)
        assert self._entered.wait(PATIENT)

    def _hold(self) -> None:
        self._entered.set()
        assert self._released.wait(PATIENT)
        if self._error is not None:
            raise self._error

    def release(self, error: Exception | None = None) -> None:
        """Let it commit, or roll back for ``error``."""
        if not self._released.is_set():
            self._error = error
            self._released.set()


def is_waiting(place: Place) -> Callable[[], bool]:
    """Whether somebody waits for another transaction; on SQLite that can't be seen."""
    return lambda: bool(
        not place.is_postgresql
        or place.execute(
            "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
    )


def deliver_at_once(place: Place, one: Inbox, other: Inbox, pool: Pool) -> None:
    """A message to two inboxes of one consumer at the same time: one executes it, the other waits and gets its result."""
    first = Held(place, one, "a", pool, keep=7)
    second = pool.submit(place.deliver, other, "a")
    wait_until(is_waiting(place), "the second waits")
    assert not second.done()
    first.release()
    assert (second.result().first, second.result().result) == (False, 7)
    assert first.outcome.result().first
    assert place.effects() == ["a"]


def source_of(relay: Relay) -> Any:
    """What it reads its messages from."""
    return relay._source


async def swept(inbox: Inbox) -> None:
    """Does once what `Inbox.following` does again and again."""
    for sweep in maintenance_of(inbox).sweeps:
        await sweep()
