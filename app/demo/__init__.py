"""The demo: a payments service, and the gateway in front of it."""
