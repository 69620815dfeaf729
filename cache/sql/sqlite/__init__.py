"""Records in a file of SQLite's, for the processes of one machine."""
