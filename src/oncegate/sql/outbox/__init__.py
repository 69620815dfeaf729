"""Numbers per aggregate (`Sequences`), messages in the transaction of what they tell (`Outbox`), what publishes them (`Relay`)."""
