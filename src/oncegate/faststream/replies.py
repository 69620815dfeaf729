"""A FastStream handler in an inbox's transaction: its reply is published once that is committed, and again for a duplicate.

Strategy. ``consume_scope`` of a middleware ends before FastStream publishes what it returns, so the transaction is begun and
committed in there: no reply is of what was rolled back. The result is kept in that transaction, and in the hook's record:
whichever of the two knows a duplicate, its reply is sent again, so that none is lost between COMMIT and its publication.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from faststream.exceptions import AckMessage
from faststream.response import Response

from oncegate.middleware.consumers.transactional import Executed, TransactionalInbox


def is_reply_due(subscriber: Any, message: Any) -> bool:
    """Whether FastStream publishes what the handler of ``message`` returns."""
    requested = bool(message.reply_to) and not subscriber._no_reply
    return requested or any(call.handler._publishers for call in subscriber.calls)


async def execute(
    inbox: TransactionalInbox, sessions: Any, context: Any, call: Callable[[], Awaitable[Any]], *, reply_due: bool
) -> tuple[Executed, AckMessage | None]:
    """Execute ``call`` in a transaction whose session it finds in ``context``.

    An `AckMessage` out of it is a success without a reply: it is committed, and is returned to be raised after that.
    """
    acknowledged: AckMessage | None = None

    async def handle(session: Any) -> Any:
        nonlocal acknowledged
        with context.scope("session", session):
            try:
                return _body(await call())
            except AckMessage as error:
                acknowledged = error
                return None

    def keeps(result: Any) -> bool:
        return acknowledged is None and (reply_due or result is not None)

    return await inbox.execute(sessions, handle, keeps=keeps), acknowledged


def _body(returned: Any) -> Any:
    """The part of a reply that can be kept: of a bare `Response` its body, of which FastStream makes one again."""
    if type(returned) is Response and not returned.headers and returned.correlation_id is None:
        return returned.body
    return returned
