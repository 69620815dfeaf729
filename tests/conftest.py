"""What all tests share: one redis-server for the whole run, and where they are asked for, servers that belong together."""

from collections.abc import Iterator

import pytest

from tests.groups import ClusterGroup, SentinelGroup
from tests.servers import RedisServer


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="also run what is marked as long: minutes more")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--long"):
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="needs --long"))


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """Shared by the whole run, over a Unix socket: keep to a namespace of your own, and leave it running as it was."""
    with RedisServer("unix") as server:
        yield server


@pytest.fixture(scope="session")
def redis_url(redis_server: RedisServer) -> str:
    """Where `redis_server` is."""
    return redis_server.url


@pytest.fixture(scope="session")
def sentinel_group() -> Iterator[SentinelGroup]:
    """A master, a replica and a Sentinel, shared by the whole run: leave the master what it is."""
    with SentinelGroup() as group:
        yield group


@pytest.fixture(scope="session")
def cluster_group() -> Iterator[ClusterGroup]:
    """Three masters, shared by the whole run: leave them up, and the slots where they end up."""
    with ClusterGroup() as group:
        yield group
