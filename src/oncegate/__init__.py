"""oncegate enforces idempotency keys that the caller supplies: as a gateway, or as ASGI middleware in your own app.

`IdempotencyMiddleware` is for ASGI apps, `idempotent` decorates functions, `CommandProcessor` and `SyncCommandProcessor` execute
commands, `Subscription` is for consumers of messages; each takes a `Cache`, or the URL of one. The errors are of one tree, under
`OncegateError`. docs/reference.md has all of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oncegate.app.commands.executor import CommandContext
    from oncegate.cache.errors import CacheError, CacheUnavailable, OncegateError, RecordUnreadable
    from oncegate.cache.memory.store import MemoryCache
    from oncegate.cache.open import open_cache
    from oncegate.cache.record import StoredResponse
    from oncegate.cache.redis.store import RedisCache
    from oncegate.cache.store import Cache
    from oncegate.middleware.admission.observe import Observation, Observe, Watch
    from oncegate.middleware.calls.errors import (
        CommandFailedError,
        DuplicateCommandError,
        InFlightError,
        KeyReusedError,
        OutcomeUnknownError,
        ProcessError,
    )
    from oncegate.middleware.calls.idempotent import idempotent
    from oncegate.middleware.calls.processor import CommandProcessor
    from oncegate.middleware.calls.sync import SyncCommandProcessor
    from oncegate.middleware.consumers.begun import Begun, Recording
    from oncegate.middleware.consumers.delivery import Action, Delivery, DeliveryDecision, SubscriptionSettings
    from oncegate.middleware.consumers.derived_key import derive_key
    from oncegate.middleware.consumers.handling import NotRecorded
    from oncegate.middleware.consumers.once import Once
    from oncegate.middleware.consumers.subscription import Subscription
    from oncegate.middleware.http.app_functions import Caller, Redact
    from oncegate.middleware.http.cors import EXPOSED_HEADERS, REQUEST_HEADERS
    from oncegate.middleware.http.middleware import IdempotencyMiddleware
    from oncegate.middleware.outcome.errors import NotProcessed, NotRetryable, OutcomeUnknown
    from oncegate.middleware.outcome.results import Codec
    from oncegate.middleware.rules.errors import (
        CallerFailed,
        CallerInvalid,
        CallerMissing,
        CallerUnverifiable,
        KeyInvalid,
        KeyMissing,
        Overloaded,
        Refusal,
    )
    from oncegate.middleware.rules.settings import IdempotencySettings, Route
    from oncegate.middleware.tokens.settings import JwtSettings

__version__ = "0.1.0"

__all__ = [
    "EXPOSED_HEADERS",
    "REQUEST_HEADERS",
    "Action",
    "Begun",
    "Cache",
    "CacheError",
    "CacheUnavailable",
    "Caller",
    "CallerFailed",
    "CallerInvalid",
    "CallerMissing",
    "CallerUnverifiable",
    "Codec",
    "CommandContext",
    "CommandFailedError",
    "CommandProcessor",
    "Delivery",
    "DeliveryDecision",
    "DuplicateCommandError",
    "IdempotencyMiddleware",
    "IdempotencySettings",
    "InFlightError",
    "JwtSettings",
    "KeyInvalid",
    "KeyMissing",
    "KeyReusedError",
    "MemoryCache",
    "NotProcessed",
    "NotRecorded",
    "NotRetryable",
    "Observation",
    "Observe",
    "Once",
    "OncegateError",
    "OutcomeUnknown",
    "OutcomeUnknownError",
    "Overloaded",
    "ProcessError",
    "RecordUnreadable",
    "Recording",
    "Redact",
    "RedisCache",
    "Refusal",
    "Route",
    "StoredResponse",
    "Subscription",
    "SubscriptionSettings",
    "SyncCommandProcessor",
    "Watch",
    "derive_key",
    "idempotent",
    "open_cache",
]

_HOMES = {
    "app.commands.executor": ("CommandContext",),
    "cache.store": ("Cache",),
    "cache.errors": ("CacheError", "CacheUnavailable", "OncegateError", "RecordUnreadable"),
    "cache.memory.store": ("MemoryCache",),
    "cache.open": ("open_cache",),
    "cache.record": ("StoredResponse",),
    "cache.redis.store": ("RedisCache",),
    "middleware.consumers.begun": ("Begun", "Recording"),
    "middleware.calls.processor": ("CommandProcessor",),
    "middleware.outcome.results": ("Codec",),
    "middleware.http.cors": ("EXPOSED_HEADERS", "REQUEST_HEADERS"),
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
    "middleware.consumers.handling": ("NotRecorded",),
    "middleware.http.middleware": ("IdempotencyMiddleware",),
    "middleware.calls.idempotent": ("idempotent",),
    "middleware.admission.observe": ("Observation", "Observe", "Watch"),
    "middleware.consumers.once": ("Once",),
    "middleware.calls.errors": (
        "CommandFailedError",
        "DuplicateCommandError",
        "InFlightError",
        "KeyReusedError",
        "OutcomeUnknownError",
        "ProcessError",
    ),
    "middleware.outcome.errors": ("NotProcessed", "NotRetryable", "OutcomeUnknown"),
    "middleware.http.app_functions": ("Caller", "Redact"),
    "middleware.rules.settings": ("IdempotencySettings", "Route"),
    "middleware.consumers.subscription": ("Subscription",),
    "middleware.calls.sync": ("SyncCommandProcessor",),
}


def __getattr__(name: str) -> Any:
    """Names are loaded on first use: ``oncegate --help`` needs neither Redis nor pydantic."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The names, those included that are not loaded yet."""
    return sorted({*globals(), *__all__})
