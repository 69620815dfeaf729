"""Idempotency for HTTP: `IdempotencyMiddleware`, pure ASGI; its `Exchange` and `Enforcement` are shared with the gateway."""
