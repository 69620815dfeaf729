"""What all tests share: one redis-server for the whole run."""

from collections.abc import Iterator

import pytest

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
