"""What operators get over HTTP (`Operations`: health, metrics, records, commands, dead letters), by FastAPI; and the access to
records (`Records`) and dead letters (`Commands`) that the command line shares."""
