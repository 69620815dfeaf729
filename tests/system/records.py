"""What lies in Redis: the records of a namespace, as the codec reads them."""

from dataclasses import dataclass
from typing import cast

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
    with redis.Redis.from_url(url) as client:
        for name in client.scan_iter(f"{namespace}:*"):
            with client.pipeline() as pipe:
                data, remaining_ms = cast(tuple[bytes | None, int], pipe.get(name).pttl(name).execute())
            if data is not None:
                found[name.decode()] = Held(decode(data, remaining_ms), remaining_ms)
    return found


def only(url: str, namespace: str) -> Held:
    """The one record of ``namespace``."""
    (record,) = held(url, namespace).values()
    return record


def is_in_flight(url: str, namespace: str) -> bool:
    """Whether that is so of the one record that there is."""
    return [each.record.state for each in held(url, namespace).values()] == [State.IN_FLIGHT]
