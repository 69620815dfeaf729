"""What a relay takes messages from: the outbox's table, or an append-only table of the user's."""
