"""The gateway as one ASGI app (`Gateway`), and its fast path past ASGI."""
