"""``oncegate inbox``, ``outbox`` and ``relay``: what is in a database, for operators. SQLAlchemy is loaded when they run."""
