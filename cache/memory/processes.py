"""Whether this process is one of several that serve one app: each has a `MemoryCache` of its own, and executes each key once."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import PurePath

_SERVERS = ("uvicorn", "gunicorn", "hypercorn", "granian", "fastapi")
_OPTIONS = ("--workers", "-w")


def worker_count(arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> int:
    """How many workers the server was started with, as far as its command line (``sys.argv``) and ``WEB_CONCURRENCY`` tell.

    1 where they don't: under another server, a configuration file, or a supervisor with several processes of one worker.
    """
    given = list(arguments or sys.argv)
    path = PurePath(given[0]) if given else PurePath()
    server = path.parent.name if path.name == "__main__.py" else path.stem
    if server not in _SERVERS:
        return 1
    for name, value in zip(given, [*given[1:], ""], strict=True):
        option, equals, joined = name.partition("=")
        if option in _OPTIONS:
            return _number(joined if equals else value)
        if name.startswith("-w") and not name.startswith("--"):
            return _number(name[2:])
    return _number((os.environ if environment is None else environment).get("WEB_CONCURRENCY", "1"))


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 1
