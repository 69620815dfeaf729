"""What operators see and change, for `pages` and the command line: records (`Records`), commands (`Commands`), readiness."""
