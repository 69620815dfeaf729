"""The steps of a call in a database, and their answers: rows of bytes that are compared and swapped. No state is known here.

A row is a record's look-up key, its bytes, and the instant from which on it is gone, in Unix ms by the database's clock.
"""

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from oncegate.cache.errors import CacheUnavailable


class Row(NamedTuple):
    """A row: the bytes under a key, read at ``now_ms``. It is gone if ``ends_ms`` is not later."""

    data: bytes
    ends_ms: int
    now_ms: int

    @property
    def remaining_ms(self) -> int:
        """The time that it has left; 0 or less: it is gone, and only not swept yet."""
        return self.ends_ms - self.now_ms


HEAD_BYTES: Final = 18
"""The first bytes of a record: version, state and owner token."""


class Expected(enum.IntEnum):
    """The row that a swap expects to find."""

    NOTHING = 0
    """No row."""
    HEAD = 1
    """A row that begins with these 18 bytes, and is not gone."""
    WHOLE = 2
    """A row of these bytes with this end, and not gone."""
    GONE = 3
    """A row with this end, which is over, and that nobody has swept yet."""


@dataclass(slots=True)
class Swap:
    """Put ``data`` (``None``: the bytes that are there) under ``key`` for ``ttl_ms``, or remove it (0), if it is as expected.

    It is not made after ``until_ms``, by the database's clock; 0: whenever it arrives.
    """

    key: str
    expected: Expected
    held: bytes
    ends_ms: int
    data: bytes | None
    ttl_ms: int
    until_ms: int = 0


@dataclass(slots=True)
class Read:
    """Say what is under ``key``."""

    key: str


Step = Swap | Read


class Found(NamedTuple):
    """The answer to a step at ``now_ms``, by the database's clock.

    ``swapped``: it was as expected, and in time. Else ``row`` is what is there, ``None`` for none.
    """

    swapped: bool
    row: Row | None
    now_ms: int


class AnswerLost(CacheUnavailable):
    """The connection broke, or nobody answered: the step may have been made or not."""


Reply = Found | CacheUnavailable
"""A `CacheUnavailable` that is no `AnswerLost`: nothing was made."""


class Rows(Protocol):
    """The rows of one database, for one event loop. Each step is atomic; a reply is passed on in the loop, once."""

    def glance(self, key: str) -> Found | None:
        """The answer to a `Read` of ``key``, where it can be had at once; ``None``: it takes the step."""
        ...

    def now_ms(self) -> int:
        """The database's clock, as far as it is known; 0: it is not."""
        ...

    def put(self, step: Step, then: Callable[[Reply], None]) -> None:
        """Carry out ``step``, together with all else that waits. Steps of one key are given one after the other."""
        ...

    async def read(self, key: str, most: int = 0) -> tuple[Row, int] | None:
        """A row and the size of its bytes, of which it has the first ``most`` (0: all). Raises `CacheUnavailable`."""
        ...

    async def read_all(self, keys: Sequence[str], most: int) -> dict[str, tuple[Row, int]]:
        """The rows of ``keys``, of those that there are, as `read` has each, in one step. Raises `CacheUnavailable`."""
        ...

    async def scan(self, after: str, prefix: str, limit: int) -> tuple[list[str], str]:
        """The keys with ``prefix`` behind ``after``, those that are gone left out, and the last one that was looked at.

        That is empty where these were all. Raises `CacheUnavailable`.
        """
        ...

    async def check(self) -> list[str]:
        """See `oncegate.cache.store.Cache.check`."""
        ...

    async def describe(self) -> dict[str, str | int]:
        """A part of `oncegate.cache.store.Described`. Raises `CacheUnavailable`."""
        ...

    async def close(self) -> None:
        """Close what this loop has open."""
        ...
