"""A worker, or a gateway, that dies at a named point: ``python -m tests.worker.mortal worker`` (or ``gateway``).

In the environment, beside its settings: ``DIES_AT``, and for a worker ``CONSTANTS`` of modules in app/, as JSON.
"""

import importlib
import json
import os
import signal
import sys
from typing import Any

import tests.worker.handlers
from oncegate.app import factory
from oncegate.app.serve import serve as serve_gateway
from oncegate.app.settings.gateway import GatewaySettings
from oncegate.app.settings.loading.sources import load
from oncegate.app.work import run_worker
from oncegate.cache.record import Claim, ClaimRequest, Record, State
from oncegate.cache.redis.store import RedisCache
from oncegate.cache.store import Cache


class MortalCache(RedisCache):
    """The cache of a worker that dies by SIGKILL right before or after it has claimed or completed an execution; or of a
    gateway that dies when it has appended a command, before it records that.
    """

    point = ""

    async def claim(self, key: str, request: ClaimRequest, **options: Any) -> Claim:
        self._die_at("before-claim", key)
        claim = await super().claim(key, request, **options)
        if claim.won:
            self._die_at("after-claim", key)
        return claim

    async def complete(self, key: str, outcome: Record, **options: Any) -> bool:
        succeeded = outcome.state is State.SUCCEEDED
        if outcome.submission:
            self._die_at("before-accepted", "{")
        self._die_at("before-complete" if succeeded else "before-failed", key)
        done = await super().complete(key, outcome, **options)
        self._die_at("after-complete" if succeeded else "after-failed", key)
        return done

    def _die_at(self, point: str, key: str) -> None:
        if point == self.point and key.startswith("{"):  # an execution record, not a submission
            os.kill(os.getpid(), signal.SIGKILL)


def create(settings: GatewaySettings) -> Cache:
    cache = MortalCache.from_url(
        settings.cache, timeout=settings.cache_timeout, encryption_keys=settings.encryption_keys
    )
    assert isinstance(cache, MortalCache)
    cache.point = os.environ.get("DIES_AT", "")
    return cache


def serve() -> int:
    factory.create_cache = create
    return serve_gateway(load({}))


def work() -> int:
    tests.worker.handlers.settle_in()
    # Some are too large, or too long, to be waited for.
    for name, value in json.loads(os.environ["CONSTANTS"]).items():
        module, _, constant = name.rpartition(".")
        found = importlib.import_module(f"oncegate.app.{module}")
        assert hasattr(found, constant), name
        setattr(found, constant, value)
    return run_worker(load({}, defaults={"upstream": "http://localhost"}), create=create)


if __name__ == "__main__":
    sys.exit(work() if sys.argv[1] == "worker" else serve())
