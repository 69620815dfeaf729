"""oncegate enforces idempotency keys that the caller supplies: as a gateway, or as ASGI middleware in your own app."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oncegate.app.executor import CommandContext
    from oncegate.cache.errors import CacheError, CacheUnavailable, RecordUnreadable
    from oncegate.cache.memory import MemoryCache
    from oncegate.cache.redis import RedisCache
    from oncegate.middleware.begun import Begun, Recording
    from oncegate.middleware.command import CommandProcessor
    from oncegate.middleware.cors import EXPOSED_HEADERS, REQUEST_HEADERS
    from oncegate.middleware.delivery import Action, Delivery, DeliveryDecision, SubscriptionSettings
    from oncegate.middleware.derived_key import derive_key
    from oncegate.middleware.errors import CallerMissing, KeyInvalid, KeyMissing, Overloaded, Refusal
    from oncegate.middleware.handling import NotRecorded
    from oncegate.middleware.http import IdempotencyMiddleware
    from oncegate.middleware.process_errors import (
        CommandFailedError,
        DuplicateCommandError,
        InFlightError,
        KeyReusedError,
        OutcomeUnknownError,
        ProcessError,
    )
    from oncegate.middleware.processor import NotProcessed, NotRetryable, OutcomeUnknown
    from oncegate.middleware.settings import IdempotencySettings, Route
    from oncegate.middleware.subscription import Subscription
    from oncegate.middleware.sync_command import SyncCommandProcessor

__version__ = "0.1.0"

__all__ = [
    "EXPOSED_HEADERS",
    "REQUEST_HEADERS",
    "Action",
    "Begun",
    "CacheError",
    "CacheUnavailable",
    "CallerMissing",
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
    "OutcomeUnknown",
    "OutcomeUnknownError",
    "Overloaded",
    "ProcessError",
    "RecordUnreadable",
    "Recording",
    "RedisCache",
    "Refusal",
    "Route",
    "Subscription",
    "SubscriptionSettings",
    "SyncCommandProcessor",
    "derive_key",
]

_HOMES = {
    "app.executor": ("CommandContext",),
    "cache.errors": ("CacheError", "CacheUnavailable", "RecordUnreadable"),
    "cache.memory": ("MemoryCache",),
    "cache.redis": ("RedisCache",),
    "middleware.begun": ("Begun", "Recording"),
    "middleware.command": ("CommandProcessor",),
    "middleware.cors": ("EXPOSED_HEADERS", "REQUEST_HEADERS"),
    "middleware.delivery": ("Action", "Delivery", "DeliveryDecision", "SubscriptionSettings"),
    "middleware.derived_key": ("derive_key",),
    "middleware.errors": ("CallerMissing", "KeyInvalid", "KeyMissing", "Overloaded", "Refusal"),
    "middleware.handling": ("NotRecorded",),
    "middleware.http": ("IdempotencyMiddleware",),
    "middleware.process_errors": (
        "CommandFailedError",
        "DuplicateCommandError",
        "InFlightError",
        "KeyReusedError",
        "OutcomeUnknownError",
        "ProcessError",
    ),
    "middleware.processor": ("NotProcessed", "NotRetryable", "OutcomeUnknown"),
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
