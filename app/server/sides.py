"""What the parts of a client's connection know of it: each one side, so that none needs to know the whole."""

import asyncio
from typing import Any, Protocol


class Reading(Protocol):
    """The side of what was read and waits to be parsed."""

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport

    @property
    def takes_more(self) -> bool:
        """Whether what was read is to be parsed now."""
        ...

    def data_received(self, data: bytes) -> None:
        """Parse ``data``."""
        ...


class Writing(Protocol):
    """The side of what its client has not taken yet."""

    transport: asyncio.Transport
    writable: asyncio.Event | None


class Parsing(Protocol):
    """The side of the parser, which makes requests of bytes."""

    def request_begins(self) -> None:
        """The first byte of a request."""
        ...

    def head_is_complete(
        self, scope: dict[str, Any], keep_alive: bool, expects_go_ahead: bool, upgrades: bool, ends: bool
    ) -> None:
        """The request can begin. ``ends``: what follows is another protocol's."""
        ...

    def body_came(self, body: bytes) -> None:
        """A piece of body."""
        ...

    def request_is_whole(self) -> None:
        """The last byte of a request, trailers included."""
        ...


class Held(Protocol):
    """What waits for the client."""

    def hold(self, size: int) -> None:
        """So many bytes wait until writing goes on."""
        ...


class Responding(Protocol):
    """The side of the requests, which are answered over it."""

    loop: asyncio.AbstractEventLoop
    tasks: set[asyncio.Task[None]]
    writable: asyncio.Event | None

    @property
    def unsent(self) -> Held:
        """What its client has not taken yet."""
        ...

    @property
    def stopping(self) -> bool:
        """Whether the request that is being answered is the last one."""
        ...

    def write(self, data: bytes, large: bytes = b"") -> bool:
        """Hand bytes to the transport. False: the client is gone."""
        ...

    def resume_reading(self) -> None:
        """Read on."""
        ...

    def answered(self, keep_alive: bool) -> None:
        """The response is whole."""
        ...

    def close(self) -> None:
        """Close it, once what was written is on its way."""
        ...
