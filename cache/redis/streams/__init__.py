"""Command streams in Redis: `CommandStream`, consumer groups (`Group`), dead letters (`Death`), memory, and a client for them."""
