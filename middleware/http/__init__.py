"""Idempotency for HTTP: `IdempotencyMiddleware`, pure ASGI; its `Exchange` and `HttpDoor` are shared with the gateway."""
