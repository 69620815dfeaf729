"""Idempotency for HTTP requests, function calls and messages: rules, admission, attempts, and the entry points to them.

Imports cache, never app."""
