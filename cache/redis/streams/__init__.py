"""Command streams in Redis: entries (`CommandStream`), consumer groups (`Group`), their memory, and the client for them."""
