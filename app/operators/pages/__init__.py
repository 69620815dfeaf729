"""What is under the prefix, by FastAPI: health, metrics, records, commands, dead letters; its description, and a client of it."""
