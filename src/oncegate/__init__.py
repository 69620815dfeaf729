"""oncegate enforces idempotency keys that the caller supplies: as a gateway, or as ASGI middleware in your own app."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oncegate.cache.errors import CacheError, CacheUnavailable, RecordUnreadable
    from oncegate.cache.memory import MemoryCache
    from oncegate.cache.redis import RedisCache
    from oncegate.middleware.command import CommandProcessor, DuplicateCommandError, ProcessError, SyncCommandProcessor
    from oncegate.middleware.http import IdempotencyMiddleware
    from oncegate.middleware.processor import NotProcessed, OutcomeUnknown
    from oncegate.middleware.settings import IdempotencySettings, Route

__version__ = "0.1.0"

__all__ = [
    "CacheError",
    "CacheUnavailable",
    "CommandProcessor",
    "DuplicateCommandError",
    "IdempotencyMiddleware",
    "IdempotencySettings",
    "MemoryCache",
    "NotProcessed",
    "OutcomeUnknown",
    "ProcessError",
    "RecordUnreadable",
    "RedisCache",
    "Route",
    "SyncCommandProcessor",
]

_HOMES = {
    "cache.errors": ("CacheError", "CacheUnavailable", "RecordUnreadable"),
    "cache.memory": ("MemoryCache",),
    "cache.redis": ("RedisCache",),
    "middleware.command": ("CommandProcessor", "DuplicateCommandError", "ProcessError", "SyncCommandProcessor"),
    "middleware.http": ("IdempotencyMiddleware",),
    "middleware.processor": ("NotProcessed", "OutcomeUnknown"),
    "middleware.settings": ("IdempotencySettings", "Route"),
}


def __getattr__(name: str) -> Any:
    """What is asked for is loaded then: ``oncegate --help`` needs neither Redis nor pydantic."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
