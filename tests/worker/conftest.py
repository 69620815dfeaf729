"""What the worker's tests share: a shop for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.servers import RedisServer
from tests.worker.shop import Shop


@pytest.fixture
def shop(redis_url: str, tmp_path: Path) -> Iterator[Shop]:
    """On the Redis that all tests share."""
    opened = Shop(redis_url, tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A Redis that may be stopped; what it holds survives that."""
    with RedisServer(persist=True) as server:
        yield server


@pytest.fixture
def own_shop(own_redis: RedisServer, tmp_path: Path) -> Iterator[Shop]:
    """On a Redis of its own."""
    opened = Shop(own_redis.url, tmp_path)
    yield opened
    opened.close()
