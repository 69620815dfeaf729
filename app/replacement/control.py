"""Replaces a running gateway by a new one on the same sockets (``oncegate serve --replace``): the way between the two.

The running one listens on a control socket, whose file is its user's alone. The new one connects, and gets the listening
sockets as descriptors: they are the same sockets, with the same queues, so that none is ever closed or opened while clients
connect. Each of the new one's workers reports once it could serve. When all have, the running one sends `GO`,
accepts nothing more, and ends when its connections have. Until then it goes on as before, whatever becomes of the new one.

    new -> running   {"protocol": 1, "workers": 2}
    running -> new   {"pid": 7, "http": 1} and the sockets: for requests, for operations, the control socket
    new -> running   a byte for each worker that could serve: its index
    running -> new   GO, for all workers alike: each looks at it, and none takes it from the others

Instead of either message the running one may send ``{"refused": "a line"}``.
"""

import errno
import json
import os
import re
import socket
import stat
import struct
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

PROTOCOL = 1
GO = b"go\n"
HELLO_SECONDS = 5.0
"""The time for what is answered at once."""
START_SECONDS = 60.0
"""The time for the new one to start as a whole."""
LONGEST = 1000
"""Bytes of a message."""
MOST_SOCKETS = 200
_PEER = struct.Struct("@iII")
"""``struct ucred``: process, user, group."""


class NotReplaced(Exception):
    """The running gateway goes on, and the new one must not start. The text is one line for the operator."""


def control_path(host: str, port: int) -> Path:
    """Where a gateway of this user on ``host`` and ``port`` has its control socket."""
    given = os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]  # systemd sets it
    folder = Path(given) if given else Path(tempfile.gettempdir()) / f"oncegate-{os.geteuid()}"
    return folder / f"{re.sub(r'[^A-Za-z0-9.]', '_', host)}-{port}.sock"


def open_control(path: Path) -> socket.socket:
    """A control socket at ``path``, in the place of one that nobody listens on. Raises `OSError`."""
    with suppress(FileExistsError):
        path.parent.mkdir(mode=0o700)
    check_folder(path.parent)
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with suppress(FileNotFoundError):
            made.unlink()
        control.bind(str(made))
        made.chmod(0o600)
        control.listen(8)
        control.setblocking(False)
        made.replace(path)
    except OSError:
        control.close()
        with suppress(OSError):
            made.unlink()
        raise
    return control


def remove_control(path: Path, control: socket.socket) -> None:
    """Remove the file of a control socket that nobody listens on any more, and close the socket. Leaves another one's file."""
    control.close()
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial:
        trial.settimeout(HELLO_SECONDS)
        if trial.connect_ex(str(path)) == errno.ECONNREFUSED:
            path.unlink()


def check_folder(folder: Path) -> None:
    """Nobody else may put a socket there, or a link."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise OSError(errno.EPERM, f"{folder} is not a folder that this user alone may write to")


def user_and_process(connection: socket.socket) -> tuple[int, int]:
    """Of the other end. Where the system doesn't say, the folder's rights are the check."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return os.geteuid(), 0
    process, user, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, option, _PEER.size))
    return user, process


def parsed(data: bytes) -> dict[str, Any]:
    """A message that may come from another version, or be cut off: what isn't understood is empty."""
    try:
        found = json.loads(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
