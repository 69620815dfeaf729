"""The seam to what executes a command: what it may raise, and what it is told about the attempt.

A command processor is any ASGI app: the forwarder of the gateway, or the app that the middleware is put into. Two
exceptions tell apart what decides whether money may have moved; any other exception out of an app is a failure.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple


class NotProcessed(Exception):
    """Nothing of the command reached its processor (refused, no address, no TLS): the key may be used again at once."""


class NotAccepted(NotProcessed):
    """A submission was not accepted: send it again. ``slug`` is the problem that says why.

    ``copied``: a copy of the command may have arrived all the same, and wait to be processed.
    """

    def __init__(self, slug: str, detail: str, *, copied: bool = False) -> None:
        super().__init__(detail)
        self.slug = slug
        self.copied = copied


class OutcomeUnknown(Exception):
    """The command may have been processed and no answer says so: it was sent, then the connection broke."""


class NotRetryable(Exception):
    """The command was not done and no further attempt would do better. For consumers' handlers: it is dead-lettered at once."""


class NoAnswerInTime(OutcomeUnknown):
    """The command was sent and no response head came within the time allowed."""


SCOPE_EXTENSION = "oncegate.attempt"
"""``scope["extensions"]`` holds an `AttemptView` under this name while a request runs under enforcement."""


class AttemptView(NamedTuple):
    """What a command processor may know of the attempt that it executes.

    ``number`` counts from 1 (also sent as ``Idempotency-Attempt``). ``record`` is the record's id, fit for logs.
    ``confirm`` is awaited right before the first byte leaves for where the effect happens: it returns at once in the usual
    case, renews a lease that has grown old, and raises `NotProcessed` where the attempt is no longer ours: send nothing then.
    ``None`` where there is nothing to confirm (the cache is down and the policy is to fail open).
    """

    number: int
    record: str
    confirm: Callable[[], Awaitable[None]] | None


SUBMISSION_EXTENSION = "oncegate.submission"
"""``scope["extensions"]`` holds a `Submission` under this name where a command is to be accepted, not executed."""


@dataclass(frozen=True, slots=True)
class Submission:
    """What is accepted together with a request: its key as text, its fingerprint, its route's pattern, and for which stream."""

    key: str
    fingerprint: bytes
    route: str
    stream: str
