"""The pages under the prefix, by FastAPI: health, metrics, records, commands, dead letters; their description, and a client."""
