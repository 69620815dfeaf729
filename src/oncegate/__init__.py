"""oncegate enforces idempotency keys that the caller supplies: as a gateway, or as ASGI middleware in your own app.

`IdempotencyMiddleware` is for ASGI apps, `idempotent` decorates functions, `CommandProcessor` and `SyncCommandProcessor` execute
commands, `Subscription` is for consumers of messages; each takes a `Cache`, or the URL of one. The errors are of one tree, under
`OncegateError`. docs/reference.md has all of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oncegate.app.executor import CommandContext
    from oncegate.cache.base import Cache
    from oncegate.cache.errors import CacheError, CacheUnavailable, OncegateError, RecordUnreadable
    from oncegate.cache.memory import MemoryCache
    from oncegate.cache.open import open_cache
    from oncegate.cache.record import StoredResponse
    from oncegate.cache.redis import RedisCache
    from oncegate.middleware.begun import Begun, Recording
    from oncegate.middleware.caller import Caller
    from oncegate.middleware.command import CommandProcessor
    from oncegate.middleware.command_form import Codec
    from oncegate.middleware.cors import EXPOSED_HEADERS, REQUEST_HEADERS
    from oncegate.middleware.delivery import Action, Delivery, DeliveryDecision, SubscriptionSettings
    from oncegate.middleware.derived_key import derive_key
    from oncegate.middleware.errors import CallerFailed, CallerMissing, KeyInvalid, KeyMissing, Overloaded, Refusal
    from oncegate.middleware.handling import NotRecorded
    from oncegate.middleware.http import IdempotencyMiddleware
    from oncegate.middleware.idempotent import idempotent
    from oncegate.middleware.observe import Observation, Observe, Watch
    from oncegate.middleware.once import Once
    from oncegate.middleware.process_errors import (
        CommandFailedError,
        DuplicateCommandError,
        InFlightError,
        KeyReusedError,
        OutcomeUnknownError,
        ProcessError,
    )
    from oncegate.middleware.processor import NotProcessed, NotRetryable, OutcomeUnknown
    from oncegate.middleware.redact import Redact
    from oncegate.middleware.settings import IdempotencySettings, Route
    from oncegate.middleware.subscription import Subscription
    from oncegate.middleware.sync_command import SyncCommandProcessor

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
    "CallerMissing",
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
    "app.executor": ("CommandContext",),
    "cache.base": ("Cache",),
    "cache.errors": ("CacheError", "CacheUnavailable", "OncegateError", "RecordUnreadable"),
    "cache.memory": ("MemoryCache",),
    "cache.open": ("open_cache",),
    "cache.record": ("StoredResponse",),
    "cache.redis": ("RedisCache",),
    "middleware.begun": ("Begun", "Recording"),
    "middleware.caller": ("Caller",),
    "middleware.command": ("CommandProcessor",),
    "middleware.command_form": ("Codec",),
    "middleware.cors": ("EXPOSED_HEADERS", "REQUEST_HEADERS"),
    "middleware.delivery": ("Action", "Delivery", "DeliveryDecision", "SubscriptionSettings"),
    "middleware.derived_key": ("derive_key",),
    "middleware.errors": ("CallerFailed", "CallerMissing", "KeyInvalid", "KeyMissing", "Overloaded", "Refusal"),
    "middleware.handling": ("NotRecorded",),
    "middleware.http": ("IdempotencyMiddleware",),
    "middleware.idempotent": ("idempotent",),
    "middleware.observe": ("Observation", "Observe", "Watch"),
    "middleware.once": ("Once",),
    "middleware.process_errors": (
        "CommandFailedError",
        "DuplicateCommandError",
        "InFlightError",
        "KeyReusedError",
        "OutcomeUnknownError",
        "ProcessError",
    ),
    "middleware.processor": ("NotProcessed", "NotRetryable", "OutcomeUnknown"),
    "middleware.redact": ("Redact",),
    "middleware.settings": ("IdempotencySettings", "Route"),
    "middleware.subscription": ("Subscription",),
    "middleware.sync_command": ("SyncCommandProcessor",),
}


def __getattr__(name: str) -> Any:
    """What is asked for is loaded then: ``oncegate --help`` needs neither Redis nor pydantic."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """With the names that are not loaded yet."""
    return sorted({*globals(), *__all__})
