"""Reads of an append-only table in a safe order: for a relay that publishes it, or a projection that applies it."""
