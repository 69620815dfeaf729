"""The demo as a process, with what it says of itself; on Redis, or on SQLite where no redis-server is on the PATH."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import httpx
import pytest

from testing.command_line import PATIENCE, Running, forked
from testing.fetching import NotFetchedError, fetched

Demos = Callable[..., AbstractContextManager["Demo"]]


class Demo:
    """A demo that listens: the addresses of its ``page``, its payments service and its ``gateway``."""

    def __init__(self, process: Running) -> None:
        self.process = process
        process.wait_for("Listening")
        self.page = process.wait_for(r"open (http://\S+)\n")[1]
        self._payments = process.wait_for(r"payments service runs on (http://[^ ,]+),")[1]
        self.gateway = process.wait_for(r"oncegate in front of it on (http://[^ ]+?)\.?\n")[1]

    def books(self) -> dict[str, Any]:
        """The service's own, from itself."""
        found: dict[str, Any] = httpx.get(f"{self._payments}/books", timeout=PATIENCE).json()
        return found

    def bookings(self, key: str) -> int:
        """How many payments were booked under ``key``: what is promised is about this number."""
        return sum(entry["key"] == key and entry["payment"] is not None for entry in self.books()["entries"])

    def stop(self) -> None:
        assert self.process.stop(signal.SIGINT) == 0
        assert "Traceback" not in self.process.output


@pytest.fixture(scope="session")
def without_redis(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH that has no redis-server."""
    folder = tmp_path_factory.mktemp("path")
    for name in ("sh", "rm", "setpriv"):
        (folder / name).symlink_to(shutil.which(name) or name)
    return str(folder)


@pytest.fixture(scope="session")
def with_redis() -> str:
    return os.pathsep.join((fetched("redis"), os.environ["PATH"]))


@pytest.fixture(scope="session")
def demos() -> Demos:
    """Starts a demo, with this PATH, and more of an environment."""

    @contextmanager
    def started(path: str, **environment: str) -> Iterator[Demo]:
        with forked("demo", "--port", "0", PATH=path, **environment) as process:
            yield Demo(process)

    return started


@pytest.fixture(scope="session")
def chromium() -> str:
    try:
        return fetched("chromium")
    except NotFetchedError as error:
        pytest.skip(str(error))
