"""The errors by which a command processor says what became of a command.

A command processor is any ASGI app: the forwarder of the gateway, or the app that the middleware is put into. Two
exceptions tell apart what decides whether money may have moved; any other exception out of an app is a failure, those that are
no ``Exception`` (a library's time-out, a panic of an extension) too.
"""

from typing import Any, Final

from oncegate.cache.errors import OncegateError

ENDS_PROCESS: Final = (KeyboardInterrupt, SystemExit)
"""Raised in the middle of a command they say nothing about its outcome; they are passed on, to end the process."""


def reduced(error: BaseException) -> tuple[Any, ...]:
    """``__reduce__`` of an error whose ``args`` are not what it is made with: Python's own would make it of those alone."""
    return _made, (type(error), *error.args), vars(error)


def _made(kind: type[BaseException], *args: object) -> BaseException:
    return kind.__new__(kind, *args)


class NotProcessed(OncegateError):
    """Nothing of the command reached its processor (refused, no address, no TLS): the key may be used again at once."""


class Parked(NotProcessed):
    """The command is stored where it will be executed when its turn has come: its message is acknowledged, without a result."""


class NotAccepted(NotProcessed):
    """A submission was not accepted: send it again. ``slug`` is the problem that says why.

    ``copied``: a copy of the command may have arrived all the same, and wait to be processed. ``members`` are the problem's
    own, where it is for the caller to mend.
    """

    def __init__(self, slug: str, detail: str, *, copied: bool = False, members: dict[str, Any] | None = None) -> None:
        super().__init__(detail)
        self.slug = slug
        self.copied = copied
        self.members = members

    def __reduce__(self) -> tuple[Any, ...]:
        return reduced(self)


class OutcomeUnknown(OncegateError):
    """The command may have been processed and no answer says so: it was sent, then the connection broke.

    A handler raises it of its own call; what `CommandProcessor.process` raises of an earlier one is an `OutcomeUnknownError`,
    which is one of these: to catch both, catch this.
    """


class NotRetryable(OncegateError):
    """The command was not done and no further attempt would do better. For consumers' handlers: it is dead-lettered at once."""


class GatewayFailed(OutcomeUnknown):
    """A fault of the gateway's own, after which nobody can tell what was sent: not the upstream's, and to be reported."""

    @classmethod
    def by(cls, error: Exception) -> "GatewayFailed":
        """The failure that ``error`` is the cause of."""
        failed = cls(f"failed in the gateway ({type(error).__name__})")
        failed.__cause__ = error  # by hand: in a compiled module ``raise from`` sets none
        return failed


class NoAnswerInTime(OutcomeUnknown):
    """The command was sent and no response head came within the time allowed."""
