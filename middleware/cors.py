"""What a cross-origin policy (CORS) has to name, so that scripts in browsers can send keys and read what became of them.

The CORS middleware goes around `IdempotencyMiddleware` (in Starlette: is added after it)::

    app.add_middleware(IdempotencyMiddleware, cache=cache)
    app.add_middleware(CORSMiddleware, allow_origins=[...], allow_headers=REQUEST_HEADERS, expose_headers=EXPOSED_HEADERS)

The other way round, a problem would have no CORS headers, so that the script would see a network error instead of it; and
the headers for the origin that came first would be stored, and given to another one.
"""

REQUEST_HEADERS = ("Idempotency-Key", "Idempotency-Raise-On-Duplicate", "Prefer")
"""Request headers that mean something here: for ``allow_headers``, beside the app's own."""

EXPOSED_HEADERS = ("Idempotency-Key", "Idempotent-Replayed", "Cache-Status", "Retry-After", "Preference-Applied")
"""Response headers that are added here: for ``expose_headers``, beside the app's own."""
