"""What lies long ago, and what was forgotten of it."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import MetaData

from oncegate.sql import Inbox
from oncegate.sql.inbox.cleanup import Progress, Retention, forget
from oncegate.sql.marking.table import inbox_table
from tests.sql.places import Place

DAYS = 86400.0
TABLE = inbox_table(MetaData())


def ago(**age: float) -> datetime:
    return datetime.now(UTC) - timedelta(**age)


def age(place: Place, days: float = 8) -> None:
    """Have all markers been written so long ago."""
    earlier = "received_at - make_interval(secs => :seconds)"
    if not place.is_postgresql:
        earlier = "datetime(received_at, '-' || :seconds || ' seconds')"
    place.execute(f"UPDATE oncegate_inbox SET received_at = {earlier}", seconds=days * DAYS)


def clean(place: Place, *consumers: str, batch_size: int = 5000, **options: Any) -> Progress:
    """Forget what is older than 7 days, without waiting for statements that may still run."""
    retention = Retention(consumers, batch_size=batch_size)
    return asyncio.run(forget(place.engine, TABLE, retention, **{"lead": 0, **options}))


def pruned(place: Place, inbox: Inbox, *keys: str) -> None:
    """Messages that were sent and processed long ago, and whose markers were deleted."""
    for key in keys:
        place.deliver(inbox, key, sent_at=ago(days=8))
    age(place)
    assert clean(place).pruned == len(keys)
