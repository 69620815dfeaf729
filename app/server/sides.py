"""The interfaces of a client's connection (protocols): one for each of its parts, so that none depends on the whole."""

import asyncio
from typing import Any, Protocol


class Reading(Protocol):
    """For what was read and waits to be parsed."""

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
    """For what its client has not read yet."""

    transport: asyncio.Transport
    writable: asyncio.Event | None


class Parsing(Protocol):
    """For the parser, which makes requests of bytes."""

    def head_is_complete(
        self,
        scope: dict[str, Any],
        fields: dict[bytes, bytes],
        keep_alive: bool,
        expects_go_ahead: bool,
        upgrades: bool,
        ends: bool,
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
    """For the requests, which are answered over it."""

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
