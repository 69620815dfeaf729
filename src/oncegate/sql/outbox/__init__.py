"""Numbers per aggregate (`Sequences`), messages in the transaction that they tell of (`Outbox`), and their `Relay`."""
