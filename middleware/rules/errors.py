"""The refusals of a request, each with its slug; `oncegate.middleware.outcome.problems` has their HTTP form."""
# Compiled: docs/decisions/0012-compiled.md

from typing import ClassVar, Final

from oncegate.cache.errors import OncegateError


class Refusal(OncegateError):
    """A request that gets a problem instead of an execution. The text is the problem's detail: one line, no secrets."""

    slug: ClassVar[str]


class KeyMissing(Refusal):
    """The route requires a key and the request has none."""

    slug = "key-missing"


class KeyInvalid(Refusal):
    """The key's header is not one key in the grammar of draft section 2.1."""

    slug = "key-invalid"


class CallerMissing(Refusal):
    """``require_scope``, or a cookie where no scope was set, without any of the scope's headers; or no user is logged in."""

    slug = "caller-missing"


class CookieAlone(CallerMissing):
    """A cookie, where no scope was set, without Authorization: two sessions with one key would get each other's responses."""


class CallerFailed(Refusal):
    """The app's function that names the caller raised, or gave what is no name. Nothing was claimed."""

    slug = "caller-failed"


class CallerInvalid(Refusal):
    """The token that should name the caller does not hold: expired, forged, malformed, for somebody else. Nothing was claimed."""

    slug = "caller-invalid"


class CallerUnverifiable(Refusal):
    """The keys that the caller's token would be verified with can't be had. Nothing was claimed."""

    slug = "caller-unverifiable"


class PayloadTooLarge(Refusal):
    """The body is over ``max_request_body``."""

    slug = "payload-too-large"


class AggregateInvalid(Refusal):
    """A numbered command that doesn't name its aggregate. Nothing was claimed."""

    slug = "aggregate-invalid"


class VersionInvalid(Refusal):
    """The field with the version that is expected holds none, or there are several. Nothing was claimed."""

    slug = "version-invalid"


class VersionMissing(Refusal):
    """The route requires the version that is expected, and the request names none. Nothing was claimed."""

    slug = "precondition-required"


class RequestTimeout(Refusal):
    """The body did not arrive within ``body_timeout``. Nothing was claimed."""

    slug = "request-timeout"


class Overloaded(Refusal):
    """Too many attempts are in flight. Nothing was claimed."""

    slug = "overloaded"


MOST_TURNS: Final = 3
"""How often it is decided about a command anew that was overtaken before it began."""


def overtaken(what: str) -> Overloaded:
    """After so many turns. ``what`` was sent: a request, a command."""
    return Overloaded(f"The {what} was overtaken again and again before it could begin: try again later.")


class TooManyKeys(Refusal):
    """The caller has as many attempts, or new keys, as one may have. Nothing was claimed. Made of its text and of `seconds`."""

    slug = "too-many-keys"

    @property
    def seconds(self) -> float:
        """Until another attempt may begin, in seconds."""
        return float(self.args[1]) if len(self.args) > 1 else 1.0

    def __str__(self) -> str:
        return str(self.args[0])
