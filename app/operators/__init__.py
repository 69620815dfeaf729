"""Endpoints for operators (`Operations`: health, metrics, records, commands), and the access to records (`Records`) and dead
letters (`Commands`) that the command line shares."""
