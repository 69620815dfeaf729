"""What is read of an append-only table, in a safe order: by a relay that publishes it, or a projection that applies it."""
