"""Where a gateway's listening sockets come from: the supervisor, the gateway that it replaces, or addresses that it binds."""

import logging
import socket
from collections.abc import Sequence
from pathlib import Path

from oncegate.app.replacement.control import NotReplaced, control_path, open_control, remove_control
from oncegate.app.replacement.predecessor import Predecessor
from oncegate.app.replacement.replacement import Replacement
from oncegate.app.server.accept import bind
from oncegate.app.settings.gateway import GatewaySettings
from oncegate.app.supervisor import given_sockets

log = logging.getLogger("oncegate.serve")


class Listening:
    """The sockets that a gateway with ``settings`` listens on, and how it is replaced; to be made before any fork.

    ``replace``: it takes the place of the gateway that runs there, if one does. Raises `OSError` or `NotReplaced`, in one line.
    """

    def __init__(self, settings: GatewaySettings, *, replace: bool = False) -> None:
        http, ops = given_sockets(settings.ops_port)
        path = _control_path(settings)
        if replace and path is None:
            raise NotReplaced(
                "--replace: needs a port that is the same each time, and a cache that both share (sqlite:///records.db, "
                "redis://): what memory:// holds ends with its process, and a key in flight there would be executed again"
            )
        predecessor = Predecessor.at(path, settings.workers) if replace and path is not None else None
        if replace and predecessor is None:
            log.warning("--replace: no gateway of this user answers at %s: starting as the first one", path)
        if predecessor is not None and not http:
            http, ops = predecessor.take(settings.ops_port)
        http = http or bind(settings.host, settings.port)
        if settings.ops_port and not ops:
            ops = bind(settings.host, settings.ops_port, "ops_port")
        self.sockets: Sequence[socket.socket] = [*http, *ops]
        """Those for requests first."""
        control = predecessor.control if predecessor is not None else _open_control(path)
        self.replacement = Replacement(self.sockets, len(http), control, predecessor)
        self._path = path

    @property
    def opened(self) -> list[socket.socket]:
        """All that a parent of workers has open, too."""
        control = self.replacement.control
        return [*self.sockets, *([] if control is None else [control])]

    def close(self) -> None:
        """The gateway has ended, in all its processes."""
        control = self.replacement.control
        if control is not None and self._path is not None and not self.replacement.is_replaced:
            remove_control(self._path, control)


def _control_path(settings: GatewaySettings) -> Path | None:
    """``None`` where nothing is handed on: records in memory are the process's own, and a port of 0 is another one each time."""
    return control_path(settings.host, settings.port) if settings.port and settings.cache_is_shared else None


def _open_control(path: Path | None) -> socket.socket | None:
    if path is None:
        return None
    try:
        return open_control(path)
    except OSError as error:
        log.info("can't be replaced in place: no control socket at %s: %s", path, error.strerror or error)
        return None
