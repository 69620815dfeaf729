"""The outcomes of submitted commands' executions: recorded in one step with the life of the submission's record.

Strategy. Both records of a command end together (`oncegate.app.commands.submission_life`), and both are in one slot of a cluster.
So the script that records a success lets the submission live for as long as it, and says how long that is; whoever
acknowledges the command asks here first. Where nothing is known here, as after an outage, both are brought together by scripts of
their own, as ever: what is noted here spares a round trip, and decides nothing.
"""
# Compiled: docs/decisions/0012-compiled.md

from time import monotonic
from typing import Final

from hiredis import ReplyError

from oncegate.cache.callbacks import Then
from oncegate.cache.codec import encode
from oncegate.cache.encryption import Encryption
from oncegate.cache.record import Record, State
from oncegate.cache.redis.calls import CallbackCall, OutcomeCall, RedisCalls
from oncegate.cache.redis.connection import faults
from oncegate.cache.redis.connection.pipe import Reply
from oncegate.cache.redis.connection.topology import Routes
from oncegate.cache.redis.scripts import COMPLETE_EXECUTION
from oncegate.cache.transitions import check_duration

_MOST_NOTED: Final = 10_000
_FRESH_SECONDS: Final = 0.5
_SUCCEEDED: Final = State.SUCCEEDED


class SubmissionLives:
    """How long submissions live, whose executions' successes were recorded here just now.

    ``ahead_ms``: an execution's record ends so much sooner than its submission's.
    """

    def __init__(self, ahead_ms: int) -> None:
        self.ahead_ms = ahead_ms
        self._noted: dict[str, tuple[int, float]] = {}

    def note(self, key: str, left_ms: int, at: float) -> None:
        """The submission of the execution under ``key`` lives for ``left_ms`` from ``at`` on (the monotonic clock)."""
        noted = self._noted
        if len(noted) >= _MOST_NOTED:  # the outcome was acknowledged by nobody here
            del noted[next(iter(noted))]
        noted[key] = left_ms, at

    def take(self, key: str) -> int:
        """For how many ms it lives; 0 where nothing is known of it, or nothing any more."""
        left_ms, at = self._noted.pop(key, (0, 0.0))
        passed = monotonic() - at
        return left_ms - int(passed * 1000) if passed < _FRESH_SECONDS else 0


class ExecutionOutcomeCall(CallbackCall[bool]):
    """The success of an execution, and its submission's life, which ``lives`` notes. Raises ``ValueError`` for what is none."""

    __slots__ = ("_at", "_lives", "_name")

    def __init__(
        self,
        routes: Routes,
        key: str,
        outcome: Record,
        ttl_ms: int,
        then: Then[bool] | None,
        encryption: Encryption | None,
        lives: SubmissionLives,
    ) -> None:
        self.routes = routes
        self.key = key.encode()
        self.packed = COMPLETE_EXECUTION.call(
            self.key,
            submission_of(key).encode(),
            encode(outcome, encryption, self.key),
            b"%d" % check_duration("ttl_ms", ttl_ms),
            b"%d" % (ttl_ms + lives.ahead_ms),
        )
        self._then = then
        self._lives = lives
        self._name = key
        self._at = monotonic()

    def read(self, reply: Reply) -> bool:
        """Whether it is recorded. Raises the error that an error reply stands for."""
        if isinstance(reply, ReplyError):
            raise faults.of_reply(reply)
        if not isinstance(reply, list) or len(reply) != 2:
            return False
        recorded, left_ms = reply
        if type(left_ms) is int and left_ms > 0:
            self._lives.note(self._name, left_ms, self._at)
        return bool(recorded == 1)


def submission_of(key: str) -> str:
    """The look-up key of the command whose execution's record is under ``key``; empty where it is no execution's."""
    return key[1 : key.index("}")] if key.startswith("{") else ""


def outcome_call(
    routes: Routes,
    key: str,
    outcome: Record,
    ttl_ms: int,
    then: Then[bool] | None,
    encryption: Encryption | None,
    lives: SubmissionLives | None,
) -> CallbackCall[bool]:
    """The call that records ``outcome``; with its submission's life where it is an execution's success and ``lives`` are kept."""
    if lives is not None and outcome.state is _SUCCEEDED and submission_of(key):
        return ExecutionOutcomeCall(routes, key, outcome, ttl_ms, then, encryption, lives)
    return OutcomeCall(routes, key, outcome, ttl_ms, then, encryption)


class ExecutionCalls(RedisCalls):
    """The calls of a worker by callback."""

    __slots__ = ("_lives",)

    def __init__(self, calls: RedisCalls, lives: SubmissionLives) -> None:
        super().__init__(calls._cache, calls._client, calls._encryption)
        self._lives = lives

    def _outcome_call(
        self, routes: Routes, key: str, outcome: Record, ttl_ms: int, then: Then[bool]
    ) -> CallbackCall[bool]:
        return outcome_call(routes, key, outcome, ttl_ms, then, self._encryption, self._lives)
