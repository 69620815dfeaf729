"""What waits in the consumers' database, where the gateway is given one, and what operators change there."""
