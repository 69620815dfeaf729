"""The URL of a database of records."""

from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit


class PostgresAddress:
    """The database that a URL names: ``postgresql://user@host/db``, with asyncpg's options and environment (``PGPASSWORD``).

    ``?prepare=off`` is for a pooler that keeps no prepared statements. Raises ``ValueError``, which quotes nothing.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        options = parse_qsl(parts.query, keep_blank_values=True)
        prepare = dict(options).get("prepare", "on")
        if prepare not in ("on", "off"):
            raise ValueError("prepare is on (the default) or off (for a pooler that keeps no prepared statements)")
        try:
            has_port = parts.port is None or parts.port > 0
        except ValueError:
            has_port = False
        if not has_port and "," not in parts.netloc:
            raise ValueError("postgresql:// has a port that is none")
        self.dsn = urlunsplit(parts._replace(query=urlencode([each for each in options if each[0] != "prepare"])))
        self.prepares = prepare == "on"
