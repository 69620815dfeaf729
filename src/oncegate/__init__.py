"""oncegate enforces idempotency keys that the caller supplies: as a gateway, or as ASGI middleware in your own app.

`IdempotencyMiddleware` is for ASGI apps, `idempotent` decorates functions, `CommandProcessor` and `SyncCommandProcessor` execute
commands, `Subscription` is for consumers of messages; each takes a `Cache`, or the URL of one. The errors are of one tree, under
`OncegateError`. docs/reference.md has all of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # ``as``: for type checkers, they are exported
    from oncegate.cache.errors import CacheError as CacheError
    from oncegate.cache.errors import CacheUnavailable as CacheUnavailable
    from oncegate.cache.errors import OncegateError as OncegateError
    from oncegate.cache.errors import RecordUnreadable as RecordUnreadable
    from oncegate.cache.memory.store import MemoryCache as MemoryCache
    from oncegate.cache.open import open_cache as open_cache
    from oncegate.cache.record import StoredResponse as StoredResponse
    from oncegate.cache.redis.store import RedisCache as RedisCache
    from oncegate.cache.store import Cache as Cache
    from oncegate.middleware.admission.observe import Observation as Observation
    from oncegate.middleware.admission.observe import Observe as Observe
    from oncegate.middleware.admission.observe import Watch as Watch
    from oncegate.middleware.calls.errors import CommandFailedError as CommandFailedError
    from oncegate.middleware.calls.errors import DuplicateCommandError as DuplicateCommandError
    from oncegate.middleware.calls.errors import InFlightError as InFlightError
    from oncegate.middleware.calls.errors import KeyReusedError as KeyReusedError
    from oncegate.middleware.calls.errors import OutcomeUnknownError as OutcomeUnknownError
    from oncegate.middleware.calls.errors import ProcessError as ProcessError
    from oncegate.middleware.calls.idempotent import idempotent as idempotent
    from oncegate.middleware.calls.processor import CommandProcessor as CommandProcessor
    from oncegate.middleware.calls.sync import SyncCommandProcessor as SyncCommandProcessor
    from oncegate.middleware.consumers.begun import Begun as Begun
    from oncegate.middleware.consumers.begun import Execution as Execution
    from oncegate.middleware.consumers.begun import Recording as Recording
    from oncegate.middleware.consumers.command_context import CommandContext as CommandContext
    from oncegate.middleware.consumers.delivery import Action as Action
    from oncegate.middleware.consumers.delivery import Delivery as Delivery
    from oncegate.middleware.consumers.delivery import DeliveryDecision as DeliveryDecision
    from oncegate.middleware.consumers.delivery import SubscriptionSettings as SubscriptionSettings
    from oncegate.middleware.consumers.derived_key import derive_key as derive_key
    from oncegate.middleware.consumers.handlers.handling import NotRecorded as NotRecorded
    from oncegate.middleware.consumers.handlers.once import Once as Once
    from oncegate.middleware.consumers.subscription import Subscription as Subscription
    from oncegate.middleware.http.apps.functions import Caller as Caller
    from oncegate.middleware.http.apps.functions import Redact as Redact
    from oncegate.middleware.http.cors import EXPOSED_HEADERS as EXPOSED_HEADERS
    from oncegate.middleware.http.cors import REQUEST_HEADERS as REQUEST_HEADERS
    from oncegate.middleware.http.middleware import IdempotencyMiddleware as IdempotencyMiddleware
    from oncegate.middleware.outcome.errors import NotProcessed as NotProcessed
    from oncegate.middleware.outcome.errors import NotRetryable as NotRetryable
    from oncegate.middleware.outcome.errors import OutcomeUnknown as OutcomeUnknown
    from oncegate.middleware.outcome.results import Codec as Codec
    from oncegate.middleware.rules.errors import CallerFailed as CallerFailed
    from oncegate.middleware.rules.errors import CallerInvalid as CallerInvalid
    from oncegate.middleware.rules.errors import CallerMissing as CallerMissing
    from oncegate.middleware.rules.errors import CallerUnverifiable as CallerUnverifiable
    from oncegate.middleware.rules.errors import KeyInvalid as KeyInvalid
    from oncegate.middleware.rules.errors import KeyMissing as KeyMissing
    from oncegate.middleware.rules.errors import Overloaded as Overloaded
    from oncegate.middleware.rules.errors import Refusal as Refusal
    from oncegate.middleware.rules.settings import IdempotencySettings as IdempotencySettings
    from oncegate.middleware.rules.settings import Route as Route
    from oncegate.middleware.tokens.settings import JwtSettings as JwtSettings

__version__ = "0.1.0"

_HOMES = {
    "cache.store": ("Cache",),
    "cache.errors": ("CacheError", "CacheUnavailable", "OncegateError", "RecordUnreadable"),
    "cache.memory.store": ("MemoryCache",),
    "cache.open": ("open_cache",),
    "cache.record": ("StoredResponse",),
    "cache.redis.store": ("RedisCache",),
    "middleware.consumers.begun": ("Begun", "Execution", "Recording"),
    "middleware.calls.processor": ("CommandProcessor",),
    "middleware.outcome.results": ("Codec",),
    "middleware.http.cors": ("EXPOSED_HEADERS", "REQUEST_HEADERS"),
    "middleware.consumers.command_context": ("CommandContext",),
    "middleware.consumers.delivery": ("Action", "Delivery", "DeliveryDecision", "SubscriptionSettings"),
    "middleware.consumers.derived_key": ("derive_key",),
    "middleware.rules.errors": (
        "CallerFailed",
        "CallerInvalid",
        "CallerMissing",
        "CallerUnverifiable",
        "KeyInvalid",
        "KeyMissing",
        "Overloaded",
        "Refusal",
    ),
    "middleware.tokens.settings": ("JwtSettings",),
    "middleware.consumers.handlers.handling": ("NotRecorded",),
    "middleware.http.middleware": ("IdempotencyMiddleware",),
    "middleware.calls.idempotent": ("idempotent",),
    "middleware.admission.observe": ("Observation", "Observe", "Watch"),
    "middleware.consumers.handlers.once": ("Once",),
    "middleware.calls.errors": (
        "CommandFailedError",
        "DuplicateCommandError",
        "InFlightError",
        "KeyReusedError",
        "OutcomeUnknownError",
        "ProcessError",
    ),
    "middleware.outcome.errors": ("NotProcessed", "NotRetryable", "OutcomeUnknown"),
    "middleware.http.apps.functions": ("Caller", "Redact"),
    "middleware.rules.settings": ("IdempotencySettings", "Route"),
    "middleware.consumers.subscription": ("Subscription",),
    "middleware.calls.sync": ("SyncCommandProcessor",),
}

__all__ = sorted(name for names in _HOMES.values() for name in names)


def __getattr__(name: str) -> Any:
    """Names are loaded on first use: ``oncegate --help`` needs neither Redis nor pydantic."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The names, those included that are not loaded yet."""
    return sorted({*globals(), *__all__})
