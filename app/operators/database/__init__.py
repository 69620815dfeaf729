"""The consumers' database, where the gateway is given one: what waits there, and what operators change."""
