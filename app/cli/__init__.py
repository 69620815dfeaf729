"""The command line: `serve`, `worker`, `check`, `keys`, `commands`, `inbox`, `outbox`, `relay`, `token`, `openapi`, `demo`."""
