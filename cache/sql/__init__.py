"""Records as rows of a database that compares and swaps them: SQLite, for the processes of one machine, and PostgreSQL."""
