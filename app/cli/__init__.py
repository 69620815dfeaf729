"""The command line: `oncegate serve`, `check`, `keys`, `commands`, `worker`, `openapi`, `demo`."""
