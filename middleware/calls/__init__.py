"""Idempotent function calls: `CommandProcessor`, `SyncCommandProcessor` for callers without an event loop, and `idempotent`."""
