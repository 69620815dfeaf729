"""Events of requests and attempts, for metrics, logs and the demo. They never carry a key, a caller or a body."""

from collections.abc import Callable
from typing import Final, NamedTuple

from oncegate.cache.record import State

ENFORCED: Final = "enforced"
SHADOW: Final = "shadow"


class Observation(NamedTuple):
    """One answered request: ``decision`` is a `GateDecision`'s value or a problem's slug; ``seconds`` is to the answer's head.

    ``attempt`` is the number of the attempt that ran or is reported, 0 where there is none; ``record`` is the record's id,
    empty where there is no key; ``route`` is the route's pattern, ``*`` for the default. ``mismatch``: another payload came
    with the key, and was answered all the same (``on_mismatch = "warn"``). ``mode`` is ``shadow`` where a request was observed
    only: then all of this is what enforcement would have done, and the client has got what the app has answered.
    """

    decision: str
    status: int
    attempt: int
    record: str
    route: str
    method: str
    seconds: float
    mismatch: bool = False
    mode: str = ENFORCED


Observe = Callable[[Observation], None]
"""Called in the event loop; must be quick. What it raises is logged and goes no further."""


WATCH_FAILED: Final = "the watch failed"
"""Logged with what a watch has raised."""


class Watch:
    """Notified of attempts, which go on when no answer is observed any more: each method is an event. This one does nothing.

    Called in the event loop, by the route's pattern; must be quick. What it raises is logged and goes no further.
    """

    def attempt_began(self, route: str) -> None:
        """An attempt runs from now on."""

    def attempt_ended(self, route: str) -> None:
        """An attempt runs no more, whatever came of it."""

    def attempt_settled(self, route: str, state: State | None, seconds: float) -> None:
        """An attempt's outcome is ``state`` (``None``: released), ``seconds`` after it began; it may not be recorded yet."""

    def outcome_pending(self, record: str) -> None:
        """This process alone will know the outcome of ``record``, by its id, for longer than a moment: its attempt runs for more
        than a second, or its outcome waits for the cache. Each such event is followed by one of `outcome_known`.
        """

    def outcome_known(self, record: str) -> None:
        """The attempt has ended, or the cache has the outcome."""

    def lease_lost(self, route: str) -> None:
        """A running attempt's lease was taken over, or its record resolved by an operator."""

    def outcome_refused(self, route: str) -> None:
        """An outcome came too late: the record had another owner by then, and stays as it is."""

    def cache_answered(self, operation: str, seconds: float) -> None:
        """The cache has answered a call that a request, or its attempt, waited for.

        ``operation``: ``claim``, ``complete``, ``renew``, ``release`` or ``get``.
        """

    def cache_failed(self, operation: str, seconds: float) -> None:
        """The cache did not answer in time, or refused."""

    def bodies_waiting(self, change: int) -> None:
        """The bytes of bodies whose requests are not admitted yet are more by ``change``, which may be negative."""

    def responses_waiting(self, change: int) -> None:
        """The bytes of responses held for clients that are behind in reading are more by ``change``, which may be negative."""

    def reader_dropped(self) -> None:
        """A client lost its connection because too much was held for slow readers; what was recorded stays."""

    def outcomes_waiting(self, change: int) -> None:
        """The outcomes that wait for the cache to take them are more by ``change``, which may be negative."""

    # -- of consumers: their name stands where a route's pattern does above -------------------------------------------

    def delivery_decided(self, consumer: str, decision: str) -> None:
        """A delivery was decided about; ``decision`` is the value of a `DeliveryDecision`."""

    def delivery_mismatched(self, consumer: str) -> None:
        """Another payload came with a used key, and was taken for the same all the same (``on_mismatch = "warn"``)."""

    def dead_lettered(self, consumer: str, reason: str) -> None:
        """A delivery is given up: it is not tried again unless an operator retries it.

        ``reason``: ``exhausted``, ``rejected``, ``undecodable``, or the decision that says so.
        """

    # -- of an inbox: called wherever the transaction is, in threads too ----------------------------------------------

    def message_marked(self, consumer: str, decision: str) -> None:
        """An inbox has decided about a delivery: ``first``, ``duplicate``, ``stale``, ``early``, ``forked``, ``mismatch``,
        ``forgotten`` or ``unmarked``.

        What is ``first`` may be rolled back, and is then the first once more. What is ``unmarked`` has no key, and is executed
        without a marker.
        """

    def inbox_measured(self, table: str, rows: int, oldest: float | None) -> None:
        """An inbox's table has about so many rows; the oldest is from ``oldest``, Unix time, ``None`` where there is none."""

    def order_measured(self, consumer: str, aggregates: int, parked: int, oldest: float | None) -> None:
        """A consumer has ``aggregates`` that wait for a number, with so many ``parked`` messages, the oldest since ``oldest``."""

    def markers_pruned(self, table: str, rows: int) -> None:
        """A cleanup has deleted so many ``rows`` of an inbox's table, because they are old enough."""


NOBODY: Final = Watch()
"""Watches nothing."""
