"""What lies in a cache: the records of a namespace, as the codec reads them."""

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from time import time
from typing import cast

import psycopg
import redis

from oncegate.cache.codec import decode
from oncegate.cache.record import Record, State


@dataclass(frozen=True)
class Held:
    """A record and the ms that it has left, lease and retention together."""

    record: Record
    remaining_ms: int

    @property
    def lease_left_ms(self) -> int:
        return self.remaining_ms - self.record.retention_ms


def held(url: str, namespace: str) -> dict[str, Held]:
    """All records of ``namespace``, by their look-up keys."""
    found = {}
    if url.startswith(("sqlite", "postgresql")):
        for name, data, ends_ms in _rows(url):
            remaining_ms = ends_ms - int(time() * 1000)
            if name.startswith(f"{namespace}:") and remaining_ms > 0:
                found[name] = Held(decode(data, remaining_ms), remaining_ms)
        return found
    with redis.Redis.from_url(url) as client:
        for name in client.scan_iter(f"{namespace}:*"):
            with client.pipeline() as pipe:
                kept, remaining_ms = cast(tuple[bytes | None, int], pipe.get(name).pttl(name).execute())
            if kept is not None:
                found[name.decode()] = Held(decode(kept, remaining_ms), remaining_ms)
    return found


def _rows(url: str) -> list[tuple[str, bytes, int]]:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)) as connection:
            return connection.execute("SELECT key, data, ends_ms FROM records").fetchall()
    with psycopg.connect(url) as postgres:
        return postgres.execute("SELECT key, data, ends_ms FROM oncegate_records").fetchall()


def only(url: str, namespace: str) -> Held:
    """The one record of ``namespace``."""
    (record,) = held(url, namespace).values()
    return record


def is_in_flight(url: str, namespace: str) -> bool:
    """Whether that is so of the one record that there is."""
    return [each.record.state for each in held(url, namespace).values()] == [State.IN_FLIGHT]
