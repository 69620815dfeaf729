"""The operators' view of records (`Records`), commands (`Commands`) and readiness, for `pages` and the command line."""
