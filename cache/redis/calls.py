"""Calls to Redis, each packed and able to read its reply: a claim, an outcome. By callback, or awaited."""
# Compiled: docs/decisions/0012-compiled.md

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from hiredis import ReplyError

from oncegate.cache.callbacks import Adopt, Then, start
from oncegate.cache.codec import decode, encode, encode_claim
from oncegate.cache.encryption import OFF_LOOP_BYTES, Encryption
from oncegate.cache.errors import CacheError, CacheUnavailable, RecordUnreadable
from oncegate.cache.layout import STATE_CODES, keep
from oncegate.cache.record import Claim, ClaimRequest, Record, State, body_bytes
from oncegate.cache.redis.connection import faults
from oncegate.cache.redis.connection.pipe import OVERDUE, PendingReply, Reply
from oncegate.cache.redis.connection.send import LARGE_BYTES, persist
from oncegate.cache.redis.connection.server import Session
from oncegate.cache.redis.connection.topology import Routes
from oncegate.cache.redis.connection.withdrawal import Withdrawal
from oncegate.cache.redis.scripts import (
    CLAIM,
    CLAIM_PAST_MAXMEMORY,
    COMPLETE,
    SIZED,
    SIZES,
    pack_parts,
)
from oncegate.cache.store import KeepsSubmissions
from oncegate.cache.transitions import check_duration, check_outcome, check_takeover

if TYPE_CHECKING:
    from oncegate.cache.redis.client import RedisClient

Result = TypeVar("Result")

_ODD: Final = "Redis answered a claim with something that is no record"


class CallbackCall(PendingReply, Generic[Result]):
    """A packed command whose answer, or error in its place, is passed to ``then``."""

    __slots__ = ("_then", "key", "packed", "routes", "session")

    routes: Routes
    session: Session
    key: bytes
    packed: bytes
    _then: Then[Result] | None

    def send(self, timeout: float) -> bool:
        """Send it to the server that holds its key. ``False``: there is no connection, and it is never used."""
        routes, packed = self.routes, self.packed
        session = routes.only or routes.holder(self.key)
        if session is None:
            return False
        pipeline = (session.claims if len(packed) <= LARGE_BYTES else session.bodies).pipeline
        if pipeline is None:
            return False
        self.session = session
        try:
            pipeline.put(packed, pipeline.time() + timeout, self)
        except CacheUnavailable:
            return False
        return True

    def read(self, reply: Reply) -> Result:
        """The answer that ``reply`` is. Raises the `CacheError` that it stands for."""
        raise NotImplementedError

    def came_late(self, reply: Reply) -> None:
        """The reply came after ``then`` was called for a time-out."""

    def lost(self) -> None:
        """The connection broke; the command may have run."""

    def answered(self, reply: Reply) -> None:
        """See `PendingReply`."""
        then, self._then = self._then, None
        kind = type(reply)
        if then is None:
            self.came_late(reply)
        elif kind is not int and kind is not list and isinstance(reply, ReplyError):  # which takes ten times as long
            start(self.routes.loop, self._sent_again(reply), then)
        else:
            answer: Result | Exception
            try:
                answer = self.read(reply)
            except CacheError as error:
                answer = error
            except Exception as odd:  # noqa: BLE001 - passed on, whatever it is: else who waits would wait for ever
                answer = RecordUnreadable(f"a reply can't be read ({type(odd).__name__})")
            then(answer)

    async def _sent_again(self, refusal: ReplyError) -> Result:
        return self.read(await persist(self.routes, self.session, refusal, self.key, self.packed, self.deadline, self))

    def overdue(self) -> None:
        """See `PendingReply`."""
        then, self._then = self._then, None
        if then is not None:
            then(CacheUnavailable(OVERDUE))

    def broken(self, reason: str) -> None:
        """See `PendingReply`."""
        then, self._then = self._then, None
        self.lost()
        if then is not None:
            then(CacheUnavailable(reason))


class ClaimCall(CallbackCall[Claim]):
    """A claim, which withdraws itself when its caller has left. Raises ``ValueError`` for what can't be claimed.

    ``past_maxmemory``: a full server takes it too.
    """

    __slots__ = ("_adopt", "_encryption", "_remaining_ms", "_request")

    def __init__(
        self,
        routes: Routes,
        key: str,
        request: ClaimRequest,
        adopt: Adopt | None,
        then: Then[Claim] | None,
        encryption: Encryption | None,
        past_maxmemory: bool,
    ) -> None:
        self.routes = routes
        self.key = key.encode()
        terms = request.lease_ms, request.retention_ms, request.takeover
        self._remaining_ms, last = _terms_of_claims.get(terms) or _claim_terms(terms)
        script = CLAIM_PAST_MAXMEMORY if past_maxmemory else CLAIM
        self.packed = _packed(script.begin, self.key, encode_claim(request), last)
        self._then = then
        self._encryption = encryption
        self._request = request
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
        request = self._request
        record = decode(
            data,
            remaining_ms,
            traced=request.trace.span != "",
            encryption=self._encryption,
            key=self.key,
            as_sent=request.as_sent,
        )
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


class EncryptedClaimCall(ClaimCall):
    """A claim whose answer may have a large encrypted body: that is decrypted in a thread."""

    __slots__ = ()

    def answered(self, reply: Reply) -> None:
        """See `PendingReply`."""
        then = self._then
        if then is None or record_bytes(reply) <= OFF_LOOP_BYTES:
            super().answered(reply)
        else:
            self._then = None
            start(self.routes.loop, asyncio.to_thread(self.read, reply), then)


_terms_of_claims: Final[dict[Any, tuple[int, bytes]]] = {}
_terms_of_outcomes: Final[dict[Any, bytes]] = {}


def _packed(begin: bytes, key: bytes, record: bytes, last: bytes) -> bytes:
    """A command of a ``key`` and a ``record``: all else of it is laid ready."""
    of_key, of_record = len(key), len(record)
    key_size = SIZES[of_key] if of_key < SIZED else b"$%d\r\n" % of_key
    record_size = SIZES[of_record] if of_record < SIZED else b"$%d\r\n" % of_record
    return b"%b%b%b\r\n%b%b\r\n%b" % (begin, key_size, key, record_size, record, last)


def _claim_terms(terms: tuple[int, int, frozenset[State]]) -> tuple[int, bytes]:
    """The constant parts of a route's claims: how long they live (ms), and the end of their command."""
    lease_ms, retention_ms, takeover = terms
    remaining_ms = check_duration("lease_ms", lease_ms) + check_duration("retention_ms", retention_ms, 0)
    found = remaining_ms, pack_parts(b"%d" % remaining_ms, takeover_codes(takeover))
    keep(_terms_of_claims, terms, found)
    return found


def takeover_codes(takeover: frozenset[State]) -> bytes:
    """The stored codes of the states that a claim may take over. Raises `IllegalTransition`."""
    return b"".join(sorted([STATE_CODES[state] for state in check_takeover(takeover)]))


def record_bytes(reply: Reply) -> int:
    """The size of the record in a reply to a claim."""
    return len(reply[1]) if isinstance(reply, list) and len(reply) > 1 and isinstance(reply[1], bytes) else 0


class OutcomeCall(CallbackCall[bool]):
    """An outcome. Raises ``ValueError`` for what is none."""

    __slots__ = ()

    def __init__(
        self,
        routes: Routes,
        key: str,
        outcome: Record,
        ttl_ms: int,
        then: Then[bool] | None,
        encryption: Encryption | None,
    ) -> None:
        self.routes = routes
        self.key = key.encode()
        terms = outcome.state, ttl_ms
        last = _terms_of_outcomes.get(terms) or _outcome_terms(terms)
        self.packed = _packed(COMPLETE.begin, self.key, encode(outcome, encryption, self.key), last)
        self._then = then

    def read(self, reply: Reply) -> bool:
        """Whether it is recorded. Raises the error that an error reply stands for."""
        if type(reply) is int:
            return reply == 1
        if isinstance(reply, ReplyError):
            raise faults.of_reply(reply)
        return False


def _outcome_terms(terms: tuple[State, int]) -> bytes:
    """The constant part of a route's outcomes: the end of their command."""
    state, ttl_ms = terms
    check_outcome(state)
    found = pack_parts(b"%d" % check_duration("ttl_ms", ttl_ms))
    keep(_terms_of_outcomes, terms, found)
    return found


class RedisCalls:
    """The calls of a ``cache`` by callback, over those of its connections that are open: else each takes a task."""

    __slots__ = ("_cache", "_client", "_encryption", "_routes")

    def __init__(self, cache: KeepsSubmissions, client: "RedisClient", encryption: Encryption | None) -> None:
        self._cache = cache
        self._client = client
        self._routes = client.routes
        self._encryption = encryption

    def start_claim(
        self,
        key: str,
        request: ClaimRequest,
        loop: asyncio.AbstractEventLoop,
        adopt: Adopt | None,
        then: Then[Claim],
    ) -> asyncio.Task[None] | None:
        """See `CallbackCalls`."""
        cache, encryption, routes = self._cache, self._encryption, self._routes.get(loop)
        if routes is not None:
            past_maxmemory = cache.past_maxmemory
            if encryption is None:
                call = ClaimCall(routes, key, request, adopt, then, None, past_maxmemory)
            else:
                call = EncryptedClaimCall(routes, key, request, adopt, then, encryption, past_maxmemory)
            if call.send(self._client.timeout):
                return None
        return start(loop, cache.claim(key, request, adopt=adopt), then)

    def start_complete(
        self, key: str, outcome: Record, loop: asyncio.AbstractEventLoop, ttl_ms: int, then: Then[bool]
    ) -> None:
        """See `CallbackCalls`. It takes a task where much is to be encrypted, too."""
        encryption, routes = self._encryption, self._routes.get(loop)
        if routes is not None and (encryption is None or body_bytes(outcome) <= OFF_LOOP_BYTES):
            call = self._outcome_call(routes, key, outcome, ttl_ms, then)
            if call.send(self._client.timeout):
                return
        start(loop, self._cache.complete(key, outcome, ttl_ms=ttl_ms), then)

    def _outcome_call(
        self, routes: Routes, key: str, outcome: Record, ttl_ms: int, then: Then[bool]
    ) -> CallbackCall[bool]:
        return OutcomeCall(routes, key, outcome, ttl_ms, then, self._encryption)
