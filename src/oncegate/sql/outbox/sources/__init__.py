"""Sources of a relay's messages: the outbox's table, or an append-only table of the user's."""
