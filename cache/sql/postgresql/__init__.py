"""Records in PostgreSQL, 13 or newer, by asyncpg."""
