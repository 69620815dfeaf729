"""One call on one record: what is held or guessed, what the law makes of it, and the swap that would make it so. No I/O.

Strategy. The law (`oncegate.cache.transitions`) decides in this process; the database only compares. Where the usual case can be
guessed (nothing is there for a claim, the caller's own attempt is in flight for an outcome) the swap is sent at once, and expects
just that. Where the guess was wrong, the reply has what is there, and the law decides again: its answer to a guess counts only
once the database has made the swap.
"""

from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from oncegate.cache.codec import decode, encode
from oncegate.cache.encryption import OFF_LOOP_BYTES, Encryption
from oncegate.cache.errors import CacheUnavailable
from oncegate.cache.layout import VERSION
from oncegate.cache.record import Claim, Record, State
from oncegate.cache.sql.rows import Expected, Found, Read, Row, Step, Swap
from oncegate.cache.transitions import UNCHANGED, Move

Result = TypeVar("Result")
Law = Callable[[Claim | None], Move[Result]]
"""One function of the law, with all its arguments but what is held."""

MOST_TRIES: Final = 5
"""How often a call is decided: each further time somebody else has changed the record in between."""
_IN_FLIGHT_HEAD: Final = bytes((VERSION,)) + b"I"


class CallDecision(Generic[Result]):
    """Decides one call, step by step: `begin` or `found` give the step to be made next, ``None`` once there is an ``answer``."""

    __slots__ = ("_law", "_tries", "answer", "encryption", "key", "looks_first", "traced", "until_ms")

    answer: Result

    def __init__(self, key: str, law: Law[Result], encryption: Encryption | None = None) -> None:
        self.key = key
        self.until_ms = 0
        """The instant after which nothing is written any more, by the database's clock; 0: there is none."""
        self._law = law
        self.encryption = encryption
        self.traced = False
        """The record that is there is read with its trace."""
        self.looks_first = True
        """It may be answered by what is there, so that a look that costs little comes first."""
        self._tries = 0

    def begin(self) -> Step:
        """The first step, where nothing is known of the record: to read it."""
        return Read(self.key)

    def takes_long(self, found: Found) -> bool:
        """Whether `found` would hold up an event loop: there is much to be decrypted."""
        return self.encryption is not None and found.row is not None and len(found.row.data) > OFF_LOOP_BYTES

    def found(self, found: Found) -> Step | None:
        """The next step. Raises `RecordUnreadable`, `CacheUnavailable` after `MOST_TRIES`, what the law raises."""
        if found.swapped:
            return None
        self._tries += 1
        if self._tries > MOST_TRIES:
            raise CacheUnavailable("others have changed the record each time that it was to be written")
        row = found.row
        if row is None:
            return self._decide(None, Expected.NOTHING, None)
        if row.remaining_ms <= 0:
            return self._decide(None, Expected.GONE, row)
        held = Claim(False, self._decoded(row), row.remaining_ms)
        return self._decide(held, Expected.WHOLE, row)

    def _decoded(self, row: Row) -> Record:
        key = self.key.encode()
        return decode(row.data, row.remaining_ms, traced=self.traced, encryption=self.encryption, key=key)

    def _decide(self, held: Claim | None, expected: Expected, row: Row | None) -> Swap | None:
        move = self._law(held)
        self.answer = move.answer
        if move.ttl_ms == UNCHANGED:
            return None
        data = None if move.record is None else self._encoded(move.record)
        if row is None:
            return Swap(self.key, expected, b"", 0, data, move.ttl_ms, self.until_ms)
        return Swap(self.key, expected, row.data, row.ends_ms, data, move.ttl_ms, self.until_ms)

    def _encoded(self, record: Record) -> bytes:
        return encode(record, self.encryption, self.key.encode())


class ClaimDecision(CallDecision[Claim]):
    """A claim, which guesses that the key is free."""

    __slots__ = ()

    def begin(self) -> Step:
        """See `CallDecision`."""
        swap = self._decide(None, Expected.NOTHING, None)
        return swap if swap is not None else Read(self.key)


class OwnerDecision(CallDecision[bool]):
    """A decision that only the owner of ``token`` makes. With an ``outcome``, its attempt is guessed to be in flight."""

    __slots__ = ("_data", "_outcome", "_token")

    def __init__(
        self,
        key: str,
        law: Law[bool],
        encryption: Encryption | None,
        token: bytes,
        outcome: Record | None = None,
        data: bytes | None = None,
    ) -> None:
        super().__init__(key, law, encryption)
        self._token = token
        self._outcome = outcome
        self.looks_first = outcome is None
        self._data = data
        """The bytes of the outcome, where they were made before: a large one is encrypted in a thread."""

    def begin(self) -> Step:
        """See `CallDecision`."""
        outcome = self._outcome
        if outcome is None:
            return Read(self.key)
        attempt = Record(State.IN_FLIGHT, self._token, outcome.fingerprint, outcome.attempt)
        swap = self._decide(Claim(False, attempt, 1), Expected.HEAD, None)
        return swap if swap is not None else Read(self.key)

    def _decide(self, held: Claim | None, expected: Expected, row: Row | None) -> Swap | None:
        swap = super()._decide(held, expected, row)
        # Whatever is renewed, completed or released is the same for as long as it carries this token in flight.
        if swap is not None and held is not None:
            swap.expected, swap.held = Expected.HEAD, _IN_FLIGHT_HEAD + self._token
        return swap

    def _encoded(self, record: Record) -> bytes:
        if self._data is not None and record is self._outcome:
            return self._data
        return super()._encoded(record)


_NO_RECORD: Final = Record(State.UNKNOWN, bytes(16), bytes(16), 1)
_FOR_GOOD_MS: Final = 10**14
"""Three thousand years."""


class SecretDecision(CallDecision[bool]):
    """Whether what is kept of a namespace's secrets has one of ``values``, or nothing is kept; ``writes``: keep them then."""

    __slots__ = ("_values", "_writes")

    def __init__(self, namespace: str, values: Sequence[str], *, writes: bool) -> None:
        super().__init__(f"{{{namespace}:secret}}", _no_law)
        self._values = [value.encode() for value in values]
        self._writes = writes

    def found(self, found: Found) -> Step | None:
        """See `CallDecision`."""
        row, kept = found.row, b" ".join(self._values)
        self.answer = found.swapped or row is None or any(value in row.data.split(b" ") for value in self._values)
        if found.swapped or not self._writes or not self.answer or (row is not None and row.data == kept):
            return None
        if row is None:
            return Swap(self.key, Expected.NOTHING, b"", 0, kept, _FOR_GOOD_MS)
        return Swap(self.key, Expected.WHOLE, row.data, row.ends_ms, kept, _FOR_GOOD_MS)


class BytesDecision(CallDecision[bool]):
    """Keeps what ``change`` makes of the bytes that are kept, which are no record, for ``ttl_ms``; 0: nothing is kept then."""

    __slots__ = ("_change", "_ttl_ms")

    def __init__(self, key: str, change: Callable[[bytes | None], bytes], *, ttl_ms: int) -> None:
        super().__init__(key, _no_law)
        self._change = change
        self._ttl_ms = ttl_ms
        self.answer = True

    def _decide(self, held: Claim | None, expected: Expected, row: Row | None) -> Swap | None:  # noqa: ARG002 - no record
        is_there = row is not None and expected is not Expected.GONE
        if not self._ttl_ms and not is_there:
            return None
        kept = self._change(row.data if row is not None and is_there else None)
        was = (b"", 0) if row is None else (row.data, row.ends_ms)
        return Swap(self.key, expected, *was, kept, self._ttl_ms)

    def _decoded(self, row: Row) -> Record:  # noqa: ARG002 - no record
        return _NO_RECORD


def with_line(line: bytes, most: int, held: bytes | None) -> bytes:
    """``line`` before those that are kept, of which there are ``most`` then."""
    lines = [line] if held is None else [line, *held.split(b"\n")]
    return b"\n".join(lines[:most])


def _no_law(held: Claim | None) -> Move[bool]:
    raise NotImplementedError
