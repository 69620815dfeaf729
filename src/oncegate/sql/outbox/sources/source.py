"""A message as a relay publishes it, and the protocol of the sources that it is taken from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from oncegate.middleware.consumers.sql_interface import key_line


@dataclass(frozen=True, slots=True)
class OutboxMessage:
    """One message. ``position`` is its place in the source; ``line`` is equal for those that go one after the other."""

    position: Any
    topic: str
    key: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    correlation: str = ""
    aggregate: str = ""
    sequence: int | None = None
    line: Any = None
    attempts: int = 0
    """How often the broker has refused it."""

    def stamped(self) -> dict[str, str]:
        """The headers that it is published with."""
        stamps = {"Idempotency-Key": key_line(self.key)}
        if self.aggregate:
            stamps["oncegate-aggregate"] = self.aggregate
        if self.sequence is not None:
            stamps["oncegate-sequence"] = str(self.sequence)
        return {**self.headers, **stamps}


@dataclass(frozen=True, slots=True)
class RefusedMessage:
    """The broker has refused ``message``; ``reason`` is one line, without what the message holds."""

    message: OutboxMessage
    reason: str


@dataclass(frozen=True, slots=True)
class OutboxBacklog:
    """The messages that wait: ``rows`` (100,000 stands for more), the ``oldest``, ``held`` that are given up or were refused."""

    rows: int
    oldest: datetime | None
    held: int


class Source(Protocol):
    """A relay's source of messages. One relay calls it, one call after the other: `take`, then `settle` or `let_go`."""

    name: str

    async def take(self, most: int) -> Sequence[OutboxMessage]:
        """Up to so many messages that may be published now; those of one ``line`` stand in their order.

        No other relay gets them, nor any that is behind them in its line, until `settle` or `let_go`.
        """

    async def settle(self, confirmed: Sequence[OutboxMessage], refused: Sequence[RefusedMessage]) -> None:
        """The broker has confirmed some of what was taken, and refused some; the rest is to be published again."""

    async def let_go(self) -> None:
        """Nothing of what was taken was published, or nobody knows. Raises nothing."""

    async def measure(self) -> OutboxBacklog:
        """Measure the backlog, and tidy up if need be. Called every half a minute or so, between two batches."""

    async def close(self) -> None:
        """The relay stops."""
