"""Asynchronous commands: the gateway appends them to a stream (`Submitter`), a worker executes them (`Worker`)."""
