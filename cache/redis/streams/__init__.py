"""Streams of commands in Redis: entries (stream), consumer groups (group), their memory, and the client for both."""
