"""Calls by callback: a claim, an outcome or an entry packs its command, is sent without waiting, and reads its reply."""
# Compiled: docs/decisions/0012-compiled.md

import asyncio
import time
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final, Generic, TypeVar

from hiredis import ReplyError

from oncegate.cache.codec import decode, encode, encode_claim
from oncegate.cache.encryption import OFF_LOOP_BYTES, Encryption
from oncegate.cache.errors import CacheError, CacheRefused, CacheUnavailable, RecordUnreadable
from oncegate.cache.record import Claim, ClaimRequest, Record, State
from oncegate.cache.redis.connection import faults
from oncegate.cache.redis.connection.pipe import OVERDUE, Call, Reply
from oncegate.cache.redis.connection.routes import Routes
from oncegate.cache.redis.connection.send import LARGE_BYTES, persist
from oncegate.cache.redis.connection.server import Session
from oncegate.cache.redis.connection.withdrawal import Withdrawal
from oncegate.cache.redis.scripts import APPEND, APPEND_NUMBERED, CLAIM, CLAIM_PAST_MAXMEMORY, COMPLETE, pack_parts
from oncegate.cache.store import Adopt, Then
from oncegate.cache.transitions import check_duration, check_outcome, takeover_codes

Answer = TypeVar("Answer")

_ODD: Final = "Redis answered a claim with something that is no record"


class Soon(Call, Generic[Answer]):
    """A command whose answer, or error in its place, is passed to ``then``."""

    __slots__ = ("_then", "key", "packed", "routes", "session")

    session: Session
    packed: bytes

    def __init__(self, routes: Routes, key: bytes, then: Then[Answer] | None) -> None:
        self.routes = routes
        self.key = key
        self._then = then

    def read(self, reply: Reply) -> Answer:
        """The answer that ``reply`` is. Raises the `CacheError` that it stands for."""
        raise NotImplementedError

    def came_late(self, reply: Reply) -> None:
        """The reply came after ``then`` was called for a time-out."""

    def lost(self) -> None:
        """The connection broke; the command may have run."""

    def answered(self, reply: Reply) -> None:
        """See `Call`."""
        then, self._then = self._then, None
        if then is None:
            self.came_late(reply)
        elif isinstance(reply, ReplyError):
            task = self.routes.loop.create_task(self._try_again(reply, then))
            _trying.add(task)
            task.add_done_callback(_trying.discard)
        else:
            answer: Answer | CacheError
            try:
                answer = self.read(reply)
            except CacheError as error:
                answer = error
            except Exception as odd:  # noqa: BLE001 - passed on, whatever it is: else who waits would wait for ever
                answer = RecordUnreadable(f"a reply can't be read ({type(odd).__name__})")
            then(answer)

    async def _try_again(self, refusal: ReplyError, then: Then[Answer]) -> None:
        to, deadline = self.session, self.deadline
        answer: Answer | CacheError
        try:
            answer = self.read(await persist(self.routes, to, refusal, self.key, self.packed, deadline, self))
        except CacheError as error:
            answer = error
        then(answer)

    def overdue(self) -> None:
        """See `Call`."""
        then, self._then = self._then, None
        if then is not None:
            then(CacheUnavailable(OVERDUE))

    def broken(self, reason: str) -> None:
        """See `Call`."""
        then, self._then = self._then, None
        self.lost()
        if then is not None:
            then(CacheUnavailable(reason))


_trying: set[asyncio.Task[None]] = set()
"""Kept here, since a loop keeps no task alive by itself."""


def send_soon(call: Soon[Any], packed: bytes, timeout: float) -> bool:
    """Send one command to the server that holds its key, without waiting: ``call`` gets the reply.

    ``False``: there is no connection, and ``call`` is never used.
    """
    routes = call.routes
    session = routes.only or routes.holder(call.key)
    if session is None:
        return False
    link = (session.claims if len(packed) <= LARGE_BYTES else session.bodies).link
    if link is None:
        return False
    call.session, call.packed = session, packed
    try:
        link.put(packed, routes.loop.time() + timeout, call)
    except CacheUnavailable:
        return False
    return True


class PendingClaim(Soon[Claim]):
    """A claim on its way: reads its reply, and withdraws itself when its caller has left."""

    __slots__ = ("_adopt", "_encryption", "_remaining_ms", "_request")

    def __init__(
        self,
        routes: Routes,
        key: bytes,
        request: ClaimRequest,
        remaining_ms: int,
        adopt: Adopt | None,
        then: Then[Claim] | None,
        encryption: Encryption | None = None,
    ) -> None:
        self.routes = routes
        self.key = key
        self._then = then
        self._encryption = encryption
        self._request = request
        self._remaining_ms = remaining_ms
        self._adopt = adopt

    def read(self, reply: Reply) -> Claim:
        """The reply as a `Claim`. Raises `RecordUnreadable`, or what an error reply stands for."""
        if reply == 1:  # the record only now: most claims of a retry find something else
            return Claim(True, self._request.first_attempt(), self._remaining_ms)
        if isinstance(reply, ReplyError):
            raise faults.of_claim_reply(reply)
        # An error here goes to the caller; it would else only be logged, and the caller would wait for ever.
        if not isinstance(reply, list) or len(reply) != 3:
            raise RecordUnreadable(_ODD)
        won, data, remaining_ms = reply
        if not isinstance(data, bytes) or type(remaining_ms) is not int:
            raise RecordUnreadable(_ODD)
        record = decode(data, remaining_ms, encryption=self._encryption, key=self.key)
        return Claim(won == 1, record, remaining_ms)

    def came_late(self, reply: Reply) -> None:
        """Pass a claim that was won to ``adopt``, or give it back."""
        if isinstance(reply, ReplyError) or not (reply == 1 or reply[0] == 1):
            return
        if self._adopt is None:
            self.lost()
        else:
            # If this raises, the claim is left to lapse. To release it could free a key whose attempt has begun.
            self._adopt(self.read(reply))

    def lost(self) -> None:
        """Give the claim back, in case it was made."""
        until = time.monotonic() + self._remaining_ms / 1000
        self.routes.withdraw(Withdrawal(self.key, self._request.token, until))


class PendingEncrypted(PendingClaim):
    """A claim whose answer may have a large encrypted body: that is decrypted in a thread."""

    __slots__ = ()

    def answered(self, reply: Reply) -> None:
        """See `Call`."""
        then = self._then
        if then is None or record_bytes(reply) <= OFF_LOOP_BYTES:
            super().answered(reply)
            return
        self._then = None
        task = self.routes.loop.create_task(self._read_in_thread(reply, then))
        _trying.add(task)
        task.add_done_callback(_trying.discard)

    async def _read_in_thread(self, reply: Reply, then: Then[Claim]) -> None:
        answer: Claim | CacheError
        try:
            answer = await asyncio.to_thread(self.read, reply)
        except CacheError as error:
            answer = error
        except Exception as odd:  # noqa: BLE001 - passed on, whatever it is: else who waits would wait for ever
            answer = RecordUnreadable(f"a reply can't be read ({type(odd).__name__})")
        then(answer)


def record_bytes(reply: Reply) -> int:
    """The size of the record in a reply to a claim."""
    return len(reply[1]) if isinstance(reply, list) and len(reply) > 1 and isinstance(reply[1], bytes) else 0


def body_bytes(outcome: Record) -> int:
    """The size of the body in an outcome."""
    response = outcome.response
    return 0 if response is None or response.body is None else len(response.body)


class PendingOutcome(Soon[bool]):
    """An outcome on its way."""

    __slots__ = ()

    def read(self, reply: Reply) -> bool:
        """Whether it is recorded. Raises the error that an error reply stands for."""
        if isinstance(reply, ReplyError):
            raise faults.of_reply(reply)
        return bool(reply == 1)


class PendingEntry(Soon[str | None]):
    """An entry on its way to a stream."""

    __slots__ = ()

    def read(self, reply: Reply) -> str | None:
        """The entry's id; ``None`` where the stream is full. Raises `CacheRefused`."""
        if isinstance(reply, ReplyError):
            raise CacheRefused(str(faults.of_reply(reply)))
        return None if reply is None else str(reply, "ascii")


class Numbering:
    """What a numbered entry takes: the fields of its aggregate and of its command in the hash ``numbers``, and the number
    that is expected: ``b"*"`` for any but none, nothing for whichever it is.

    ``known_ms`` is how long ago the command may have been appended to be known still; ``kept_ms`` for how long that is kept.
    """

    __slots__ = ("aggregate", "command", "expected", "kept_ms", "known_ms", "numbers")

    def __init__(
        self, numbers: bytes, aggregate: bytes, command: bytes, expected: bytes, known_ms: int, kept_ms: int
    ) -> None:
        self.numbers = numbers
        self.aggregate = aggregate
        self.command = command
        self.expected = expected
        self.known_ms = known_ms
        self.kept_ms = kept_ms


class Numbered:
    """A numbered entry's id and number; without an id, the stream is at ``number``, which is not the one expected."""

    __slots__ = ("entry", "number")

    def __init__(self, entry: str, number: int) -> None:
        self.entry = entry
        self.number = number


class PendingNumbered(Soon[Numbered | None]):
    """A numbered entry on its way to a stream."""

    __slots__ = ()

    def read(self, reply: Reply) -> Numbered | None:
        """Where it is, or what is in its way; ``None`` where the stream is full. Raises `CacheRefused`."""
        if isinstance(reply, ReplyError):
            raise CacheRefused(str(faults.of_reply(reply)))
        if reply is None:
            return None
        parts = str(reply, "ascii").split(" ")
        return Numbered(parts[0], int(parts[1])) if len(parts) > 1 else Numbered("", int(parts[0]))


def claim_call(
    routes: Routes,
    key: str,
    request: ClaimRequest,
    adopt: Adopt | None,
    then: Then[Claim] | None = None,
    *,
    past_maxmemory: bool = False,
    encryption: Encryption | None = None,
) -> tuple[PendingClaim, bytes]:
    """A claim and its command, which ``past_maxmemory`` lets a full server take too.

    Raises ``ValueError`` for what can't be claimed."""
    remaining_ms, last = _claim_terms(request.lease_ms, request.retention_ms, request.takeover)
    address = key.encode()
    kind = PendingClaim if encryption is None else PendingEncrypted
    claim = kind(routes, address, request, remaining_ms, adopt, then, encryption)
    script = CLAIM_PAST_MAXMEMORY if past_maxmemory else CLAIM
    return claim, script.call_ending(address, encode_claim(request), last)


@lru_cache(maxsize=256)
def _claim_terms(lease_ms: int, retention_ms: int, takeover: frozenset[State]) -> tuple[int, bytes]:
    """The constant parts of a route's claims: how long they live (ms), and the end of their command."""
    remaining_ms = check_duration("lease_ms", lease_ms) + check_duration("retention_ms", retention_ms, 0)
    return remaining_ms, pack_parts(b"%d" % remaining_ms, takeover_codes(takeover))


def outcome_call(
    routes: Routes,
    key: str,
    outcome: Record,
    ttl_ms: int,
    then: Then[bool] | None = None,
    encryption: Encryption | None = None,
) -> tuple[PendingOutcome, bytes]:
    """An outcome and its command. Raises ``ValueError`` for what is no outcome."""
    last = _outcome_terms(outcome.state, ttl_ms)
    pending = PendingOutcome(routes, key.encode(), then)
    return pending, COMPLETE.call_ending(pending.key, encode(outcome, encryption, pending.key), last)


@lru_cache(maxsize=256)
def _outcome_terms(state: State, ttl_ms: int) -> bytes:
    """The constant part of a route's outcomes: the end of their command."""
    check_outcome(state)
    return pack_parts(b"%d" % check_duration("ttl_ms", ttl_ms))


def entry_call(
    routes: Routes, stream: str, fields: Iterable[bytes], limit: int, then: Then[str | None] | None = None
) -> tuple[PendingEntry, bytes]:
    """An entry of ``fields`` for a stream of at most ``limit``, and its command."""
    pending = PendingEntry(routes, stream.encode(), then)
    return pending, APPEND.call_with(pending.key, b"%d" % limit, *fields)


def numbered_call(
    routes: Routes,
    stream: str,
    fields: Iterable[bytes],
    limit: int,
    numbering: Numbering,
    then: Then[Numbered | None] | None = None,
) -> tuple[PendingNumbered, bytes]:
    """The same for an entry that gets its aggregate's next number."""
    pending = PendingNumbered(routes, stream.encode(), then)
    given = numbering
    times = b"%d %d" % (given.known_ms, given.kept_ms)
    head = (given.numbers, b"%d" % limit, given.expected, times, given.aggregate, given.command)
    return pending, APPEND_NUMBERED.call_with(pending.key, *head, *fields)
