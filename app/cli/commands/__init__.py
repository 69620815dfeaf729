"""``oncegate commands`` and ``worker``: asynchronous commands, for operators, and what executes them."""
