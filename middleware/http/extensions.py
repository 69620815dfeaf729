"""The ASGI extensions for command processors: an attempt's view and a submission, in ``scope["extensions"]``."""
# Compiled: docs/decisions/0012-compiled.md

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from oncegate.middleware.rules.versions import AggregateVersion

SCOPE_EXTENSION: Final = "oncegate.attempt"
"""``scope["extensions"]`` holds an `AttemptView` under this name while a request runs under enforcement."""


@dataclass(slots=True, init=False)  # as a `Record`: every first request makes one
class AttemptView:
    """What a command processor may know of the attempt that it executes.

    ``number`` counts from 1 (also sent as ``Idempotency-Attempt``). ``record`` is the record's id, fit for logs.
    ``confirm`` is awaited right before the first byte leaves for where the effect happens: it returns at once in the usual
    case, renews a lease that has grown old, and raises `oncegate.middleware.outcome.errors.NotProcessed` where the attempt is no
    longer ours: send nothing then. ``None`` where there is nothing to confirm (the cache is down and the policy is to fail open).
    ``token`` is its owner token, by which another middleware behind this one knows the attempt's record for what it is.
    """

    number: int
    record: str
    confirm: Callable[[], Awaitable[None]] | None
    token: bytes

    def __init__(
        self, number: int, record: str, confirm: Callable[[], Awaitable[None]] | None, token: bytes = b""
    ) -> None:
        self.number = number
        self.record = record
        self.confirm = confirm
        self.token = token


SUBMISSION_EXTENSION: Final = "oncegate.submission"
"""``scope["extensions"]`` holds a `Submission` under this name where a command is to be accepted, not executed."""


@dataclass(frozen=True, slots=True)
class Submission:
    """What is accepted together with a request: its key as text, its fingerprint, its route's pattern, and for which stream;
    and which headers travel with it beside ``content-*``, in lower case. ``version`` is there where the command gets a number;
    ``known_ms`` is then how long ago it may have been accepted at most to get the one that it got.
    """

    key: str
    fingerprint: bytes
    route: str
    stream: str
    travelling: frozenset[bytes] = frozenset()
    version: AggregateVersion | None = None
    known_ms: int = 0
