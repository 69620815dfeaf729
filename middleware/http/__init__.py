"""The HTTP door: `IdempotencyMiddleware`, pure ASGI."""
