"""Asynchronous commands: submitted to a stream by the gateway, executed by a worker."""
