"""Opens connections to the upstream."""

import asyncio
import contextlib
import socket
from ipaddress import ip_address

from oncegate.app.settings.certificates import Certificate, upstream_context
from oncegate.app.settings.upstream_url import UpstreamAddress
from oncegate.app.upstream.connection import UpstreamConnection
from oncegate.middleware.outcome.errors import NotProcessed


class Connector:
    """A connector to the upstream at ``url``, within ``timeout`` seconds each time. ``ca_file``: PEM, for the system's.

    ``certificate``: what the upstream is shown of us.
    """

    def __init__(
        self, url: str, *, timeout: float, ca_file: str | None = None, certificate: Certificate | None = None
    ) -> None:
        self.address = UpstreamAddress.parse(url)
        self._timeout = timeout
        self._ssl = upstream_context(ca_file, certificate) if self.address.scheme == "https" else None

    async def open(self) -> UpstreamConnection:
        """Open a connection, one address after the other. Raises `NotProcessed` with the last one's error."""
        address = self.address
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout):
                if address.scheme == "unix":
                    return (await loop.create_unix_connection(self._new, address.host))[1]
                return await self._open_tcp(loop)
        except TimeoutError:
            raise NotProcessed(f"{address.where}: no connection within {self._timeout:g} s") from None
        except (OSError, ValueError) as error:  # ssl's errors are among them, and names that IDNA refuses
            raise NotProcessed(f"{address.where}: {_one_line(error)}") from None

    def _new(self) -> UpstreamConnection:
        return UpstreamConnection(self.address.where)

    async def _open_tcp(self, loop: asyncio.AbstractEventLoop) -> UpstreamConnection:
        address = self.address
        end = loop.time() + self._timeout
        hosts = await _look_up(loop, address.host, address.port)
        server_hostname = address.host if self._ssl is not None else None
        for left, host in zip(range(len(hosts) - 1, -1, -1), hosts, strict=True):
            try:
                # Each address has its share of the time: one that swallows packets must not use up all of it.
                async with asyncio.timeout((end - loop.time()) / (left + 1)):
                    return (
                        await loop.create_connection(
                            self._new, host, address.port, ssl=self._ssl, server_hostname=server_hostname
                        )
                    )[1]
            except OSError:  # a time-out is one, too
                if left == 0:
                    raise
        raise OSError("the name has no address")


async def _look_up(loop: asyncio.AbstractEventLoop, host: str, port: int) -> list[str]:
    """The addresses of a host, in the resolver's order, each once."""
    with contextlib.suppress(ValueError):
        return [str(ip_address(host))]
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(info[4][0]) for info in found))


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:200] + "..."
