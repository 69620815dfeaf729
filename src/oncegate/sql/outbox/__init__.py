"""Numbers per aggregate (`Sequences`), messages in the transaction of what they report (`Outbox`), and their `Relay`."""
