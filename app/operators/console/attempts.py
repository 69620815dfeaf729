"""Attempts at a token are slowed: after some wrong ones from an address, each further one waits twice as long."""

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Final

FREE: Final = 3
"""Wrong ones that cost nothing: people mistype."""
MOST_SECONDS: Final = 60.0
"""The longest wait; after as long again without an attempt, an address is forgotten."""
MOST_ADDRESSES: Final = 1000
"""Addresses that are remembered, per process. Beyond it, the one that has not been wrong for longest is forgotten."""


@dataclass(slots=True)
class _Wrong:
    times: int
    until: float


class Attempts:
    """The wrong attempts by address; of IPv6 by the first 64 bits, which are one household's. ``now`` is in seconds."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._wrong: dict[str, _Wrong] = {}

    def wait(self, address: str) -> float:
        """Seconds until the next attempt from there is looked at; 0: at once."""
        found = self._wrong.get(_source(address))
        return 0.0 if found is None else max(0.0, found.until - self._now())

    def failed(self, address: str) -> None:
        """Note a wrong one."""
        source, now = _source(address), self._now()
        before = self._wrong.pop(source, None)  # so that it is behind all others now
        times = 1 if before is None or now - before.until > MOST_SECONDS else before.times + 1
        pause = 0.0 if times <= FREE else min(MOST_SECONDS, 2.0 ** min(times - FREE - 1, 16))
        self._wrong[source] = _Wrong(times, now + pause)
        if len(self._wrong) > MOST_ADDRESSES:
            del self._wrong[next(iter(self._wrong))]

    def succeeded(self, address: str) -> None:
        """Forget the wrong ones from there."""
        self._wrong.pop(_source(address), None)


def _source(address: str) -> str:
    try:
        given = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network((given, 64), strict=False)) if given.version == 6 else str(given)
