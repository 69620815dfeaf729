"""Idempotent consumers of messages: `Subscription`, with its `Delivery`, `Begun` and `Once`; and `derive_key`."""
