"""ASGI 3 as it is used here: its types, our extensions to a scope, and a request's body, read whole and given once more."""
# Compiled: docs/decisions/0012-compiled.md

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

from oncegate.cache.record import ClaimRequest
from oncegate.middleware.admission.limits.within import DONE, within
from oncegate.middleware.rules.errors import PayloadTooLarge, RequestTimeout
from oncegate.middleware.rules.keys.key import Fields
from oncegate.middleware.rules.policy import CONTENT_LENGTH, Policy
from oncegate.middleware.rules.versions import AggregateVersion

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]

_FEW_DIGITS: Final = 6
_BEYOND_THEM: Final = 10**_FEW_DIGITS
"""A number of few digits is below this: it need not be read, which takes long."""
_next: Final = next  # a built-in function takes no look into a dict, compiled
PATH_SAFE: Final = "/!$&'()*+,;=:@~-._%"
"""The characters of a path that stand for themselves in a request target."""
SCOPE_EXTENSION: Final = "oncegate.attempt"
"""``scope["extensions"]`` holds an `AttemptView` under this name while a request runs under enforcement."""


@dataclass(slots=True, init=False)  # as a `Record`: every first request makes one
class AttemptView:
    """A command processor's view of the attempt that it executes.

    ``number`` counts from 1 (also sent as ``Idempotency-Attempt``). ``record`` is the record's id, fit for logs.
    ``confirm`` is awaited right before the first byte leaves for where the effect happens: it renews a lease that has grown old,
    and raises `oncegate.middleware.outcome.errors.NotProcessed` where the attempt is no longer ours: send nothing then. ``None``
    where there is nothing to confirm (the cache is down and the policy is to fail open). By ``token``, its owner token, another
    middleware behind this one knows the attempt's record.
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


OBSERVED: Final = "oncegate.observed"
"""A scope holds it while a request is observed (`oncegate.middleware.http.observed.shadow`): its response may last."""
SUBMISSION_EXTENSION: Final = "oncegate.submission"
"""``scope["extensions"]`` holds a `Submission` under this name where a command is to be accepted, not executed."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A command to be accepted: the request's key as text, what its record was claimed with, and its policy, which names the
    stream. With a ``version`` it gets a number: the one that it got, if it was accepted in the last ``known_ms``.
    """

    key: str
    claim: ClaimRequest
    policy: Policy
    version: AggregateVersion | None
    known_ms: int


async def respond(send: Send, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
    """Send a whole response. Raises what ``send`` raises."""
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _uncounted(_: int) -> None:
    pass


async def read_body(
    receive: Receive, fields: Fields, limit: int, timeout: float, hold: Callable[[int], None] = _uncounted
) -> bytes | None:
    """The whole body, or ``None`` where the client left before its last chunk: then there was no request.

    Raises `PayloadTooLarge` beyond ``limit`` bytes (at once where Content-Length says so), `RequestTimeout`, and what ``hold``
    raises, which is called with the size of each piece of a body that comes in several.
    """
    declared = fields.get(CONTENT_LENGTH)
    if declared is not None and _exceeds(declared[0], limit):
        raise PayloadTooLarge(f"The body is larger than {limit} bytes.")
    found: list[bytes | None] = []
    steps = _read(receive, limit, hold, found).__await__()
    try:
        waits_for = _next(steps, DONE)
        if waits_for is not DONE:
            await within(timeout, steps, waits_for)
    except TimeoutError:
        raise RequestTimeout(f"The body did not arrive within {timeout:g} seconds.") from None
    return found[0]


def _exceeds(declared: bytes, limit: int) -> bool:
    if len(declared) <= _FEW_DIGITS and limit >= _BEYOND_THEM:  # as a rule
        return False
    return declared.isdigit() and int(declared[:20]) > limit


async def _read(receive: Receive, limit: int, hold: Callable[[int], None], found: list[bytes | None]) -> None:
    """Put the body into ``found``, as `read_body` returns it."""
    message = await receive()
    if not message.get("more_body", False):  # as a rule
        found.append(None if message["type"] == "http.disconnect" else _chunk(message, 0, limit))
        return
    chunks: list[bytes] = []
    size = 0
    while message["type"] != "http.disconnect":
        chunk = _chunk(message, size, limit)
        hold(len(chunk))
        chunks.append(chunk)
        size += len(chunk)
        if not message.get("more_body", False):
            found.append(b"".join(chunks))
            return
        message = await receive()
    found.append(None)


def _chunk(message: Message, size: int, limit: int) -> bytes:
    """The chunk of ``message``. Raises `PayloadTooLarge` where it goes beyond ``limit``, after ``size`` bytes before it."""
    chunk = message.get("body", b"")
    if not isinstance(chunk, bytes):  # middleware in front may give a bytearray
        chunk = bytes(chunk)
    if size + len(chunk) > limit:
        raise PayloadTooLarge(f"The body is larger than {limit} bytes.")
    return chunk


class BodyAgain:
    """ASGI ``receive`` for a request whose body was read already: all of it, then what comes after it."""

    __slots__ = ("_body", "_receive")

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def receive(self) -> Message:
        """The next message."""
        body, self._body = self._body, None
        if body is None:
            return await self._receive()
        return {"type": "http.request", "body": body, "more_body": False}
