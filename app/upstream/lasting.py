"""Notices exchanges that last, of those whose requests are on the fast path: nearly all are over long before.

So none has a timer, or anything else of its own, but the moment from which it lasts, with its connection. The connections are
looked at when the first of them may have come to that, and never more often than `PAUSE` allows, however many last.
"""
# Compiled: docs/decisions/0012-compiled.md

import asyncio
import logging
import math
from collections.abc import Iterable
from typing import Final

from oncegate.app.upstream.connection import UpstreamConnection

log = logging.getLogger("oncegate.forward")

PAUSE: Final = 0.05
"""Seconds from one look at all connections to the next, by which an exchange may be noticed late."""


class LastingExchanges:
    """Calls ``on_lasting`` of who awaits the response of one of the ``connections``, ``seconds`` after the request was sent."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, seconds: float, connections: Iterable[UpstreamConnection]
    ) -> None:
        self.loop = loop
        self._seconds = seconds
        self._connections = connections
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, connection: UpstreamConnection, began: float) -> None:
        """Watch the exchange that ``connection`` carries since ``began`` (the loop's clock), until it ends or is left."""
        connection.lasts_at = began + self._seconds
        if self._timer is None:
            self._timer = self.loop.call_at(connection.lasts_at, self._look)

    def close(self) -> None:
        """Look no more, until there is another exchange to be watched."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        now, next_at = self.loop.time(), math.inf
        for connection in list(self._connections):
            if connection.lasts_at > now:
                next_at = min(next_at, connection.lasts_at)
                continue
            connection.lasts_at = math.inf
            awaiting = connection.then
            if awaiting is not None:
                try:
                    awaiting.on_lasting()
                except Exception:  # the others must not wait for ever
                    log.exception("an exchange that lasts could not be dealt with")
        if next_at < math.inf and self._timer is None:
            self._timer = self.loop.call_at(max(next_at, now + PAUSE), self._look)
