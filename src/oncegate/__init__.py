"""oncegate enforces idempotency keys that the caller supplies: as a gateway, or as ASGI middleware in your own app."""

__version__ = "0.1.0"
