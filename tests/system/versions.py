"""Gateways and workers of several versions, on one cache."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from testing import former
from testing.command_line import ENVIRONMENT
from testing.former import THIS, Former, NoHistoryError, routes
from testing.gateway import MAIN, Gateway
from testing.ledger import Ledger
from testing.servers import RedisServer
from testing.template import Forked
from testing.waiting import wait_until

RULES = {"lease": 30, "ttl": 3600}


class Versions:
    """Gateways and workers of several versions, with one cache and one service."""

    def __init__(self, stack: ExitStack, ledger: Ledger, redis: RedisServer, folder: Path) -> None:
        self._stack = stack
        self._ledger = ledger
        self.cache = redis.url
        self._folder = folder
        self.namespace = uuid4().hex

    def gateway(self, version: Former = THIS, *, asynchronous: bool = True) -> Gateway:
        paths = routes(version) if asynchronous else []
        where: dict[str, Any] = {"namespace": self.namespace, "routes": paths, "idempotency": RULES}
        started = Gateway(self._log(), self._ledger.url, self.cache, site=site(version), cache_timeout=10, **where)
        self._stack.callback(started.end)
        return started

    def worker(self, version: Former = THIS) -> Path:
        """The log of a worker that forwards commands, once it reads."""
        log, path = self._log(), site(version)
        environment = {**ENVIRONMENT, **({"PYTHONPATH": str(path)} if path else {})}
        options = ["--cache", self.cache, "--namespace", self.namespace, "--forward", self._ledger.url]
        with log.open("wb") as stderr:
            process = Forked("-c", MAIN, "worker", *options, env=environment, stderr=stderr)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        wait_until(lambda: "reads stream" in log.read_text() or process.poll() is not None, "the worker reads")
        assert process.poll() is None, log.read_text()
        return log

    def _log(self) -> Path:
        return self._folder / f"{uuid4().hex}.log"


def site(version: Former) -> Path | None:
    """Where it is; without git's history the test is skipped, which says how to get it."""
    try:
        return former.site(version)
    except NoHistoryError as error:
        pytest.skip(str(error))
