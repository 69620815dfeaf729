"""A client's connection as it is handed over to another protocol (WebSocket), and the name by which its request can be found."""

import asyncio
from collections.abc import Callable
from typing import Any, Final, NamedTuple

UPGRADING: Final = "oncegate.upgrading"
"""In the scope of a request for a WebSocket that can be had: the request itself, which can ``switch``."""


class Channel(NamedTuple):
    """A client's connection that is HTTP's no more: ``early`` is what its client has sent already.

    ``is_full``: the client is behind in reading. ``stopping``: the server stops, and has notified its connections.
    The new owner adds itself to ``connections``, whose members have a `transport` and a `shutdown`; at its end it calls
    ``on_lost``.
    """

    transport: asyncio.Transport
    early: bytes
    is_full: bool
    stopping: bool
    connections: set[Any]
    on_lost: Callable[[], None] | None
