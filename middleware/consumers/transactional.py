"""The protocol of an inbox, for doors that deliver to one without importing its rooms: `oncegate.sql.Inbox` is one."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from oncegate.cache.record import State
from oncegate.middleware.admission.tracing import DeliveryTrace
from oncegate.middleware.consumers.delivery import Delivery
from oncegate.middleware.rules.keys.digests import Digests, have_same_secrets

_INBOX = "__oncegate_inbox__"
_TAKES_LATE = "__oncegate_takes_late_outcomes__"


@dataclass(frozen=True, slots=True)
class LateOutcome:
    """The outcome of a command whose message was acknowledged before it was executed: its success, or its end as failed.

    ``record`` is its record's id, ``body`` its result or its error, in JSON; ``None``: the result can't be kept. ``submitted``:
    it came through the gateway.
    """

    record: str
    fingerprint: bytes
    submitted: bool
    state: State
    body: bytes | None


class RecordsLate(Protocol):
    """A hook that records late outcomes, after it has let their messages be acknowledged."""

    def record(self, late: LateOutcome) -> Coroutine[Any, Any, bool]:
        """Whether that is done with: recorded, or not to be recorded any more. Else it is to be tried again."""


@dataclass(slots=True, eq=False)
class DeliveryContext:
    """A delivery that is executed here, as an inbox needs to know it; and what the inbox notes about it.

    ``record`` is its command's id, empty without a key, and ``fingerprint`` its payload's; ``other`` are both by the other
    secret, while two are in use. ``attempt`` is the number of the attempt. ``timeout`` (s) is what its handler has.
    """

    delivery: Delivery
    record: str = ""
    fingerprint: bytes | None = None
    other: tuple[str, bytes] | None = None
    attempt: int = 0
    is_last: bool = False
    """No attempt is allowed after this one, by the hook's count."""
    timeout: float = 0.0
    named: str = "-"
    """How a line of the log names it."""
    loop: asyncio.AbstractEventLoop | None = None
    """In which its outcome is recorded."""
    late_outcomes: RecordsLate | None = None
    """Records what becomes of it later, where its message is acknowledged before that."""
    trace: DeliveryTrace | None = None

    committed: set[str] = field(default_factory=set)
    """The inboxes that have sent a COMMIT of what was done for it."""
    rolled_back: bool = False
    """Nothing that the handler did was committed: whatever has ended it, the command was not done."""
    given_up: bool = False
    """An inbox allows no attempt after this one, by its own count."""

    @property
    def last(self) -> bool:
        """Whether no attempt is allowed after this one."""
        return self.is_last or self.given_up

    @property
    def submitted(self) -> bool:
        """Whether it came through the gateway."""
        return self.delivery.fingerprint is not None


@dataclass(frozen=True, slots=True)
class Executed:
    """The result of a delivery in a transaction that was committed."""

    result: Any
    """The handler's return value; for a delivery that is not the first, what the first one has kept, as JSON gives it back."""
    first: bool
    kept: bool
    """Whether there is a result for who comes later; of a first delivery without a marker there is none."""
    waiting: bool = False
    """Messages are parked behind it, whose turn may have come."""


class TransactionalInbox(Protocol):
    """An inbox that marks a delivery in the transaction of its handler's effect."""

    digests: Digests
    """The digests that make the ids of messages that come by another way than the door."""

    contiguous: bool
    """Whether a message whose number is early waits for those before it."""

    def check_sessions(self, sessions: Any) -> None:
        """Raises ``TypeError`` for what makes no sessions for `execute`."""

    async def execute(
        self, sessions: Any, handler: Callable[[Any], Awaitable[Any]], *, keeps: Callable[[Any], bool]
    ) -> Executed:
        """Begin, mark, call ``handler`` with the session, keep its result where ``keeps`` says so, commit."""


def set_inbox(handler: Callable[..., Any], inbox: TransactionalInbox) -> None:
    """Note on ``handler`` that it marks its deliveries by itself."""
    setattr(handler, _INBOX, inbox)


def inbox_of(handler: Callable[..., Any]) -> TransactionalInbox | None:
    """The inbox by which ``handler``, or what it decorates with `functools.wraps`, marks its deliveries by itself."""
    return getattr(handler, _INBOX, None)


def check_secrets(inbox: TransactionalInbox | None, digests: Digests) -> None:
    """Raises ``ValueError`` where an inbox has other ones: a message would have one id here, and another one there."""
    if inbox is not None and not have_same_secrets(inbox.digests, digests):
        raise ValueError(
            "the inbox and the subscription have different secrets, or one of them has none: give both the same (secret=)"
        )


def set_takes_late(handler: Callable[..., Any], take: Callable[[RecordsLate], None]) -> None:
    """Note on ``handler`` that it has late outcomes, and takes by ``take`` what records them."""
    setattr(handler, _TAKES_LATE, take)


def give_late_outcomes(handlers: Iterable[Callable[..., Any]], records: RecordsLate) -> None:
    """Have each of ``handlers``, or what it decorates with `functools.wraps`, record by ``records``, if it has late outcomes."""
    for handler in handlers:
        take: Callable[[RecordsLate], None] | None = getattr(handler, _TAKES_LATE, None)
        if take is not None:
            take(records)
