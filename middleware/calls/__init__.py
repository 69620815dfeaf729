"""The doors for functions: `CommandProcessor`, and `SyncCommandProcessor` for callers without an event loop."""
