"""A gateway with commands. What is marked so runs on both event loops, which differ in what they raise; compiled, on one."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping

import pytest
import uvloop

from oncegate.app.upstream import outgoing
from oncegate.middleware.rules import policy
from testing.servers import RedisServer
from tests.app.submitted import Submitted, serving


@pytest.hookimpl(optionalhook=True)  # pytest-asyncio has it since 1.4; older ones run on asyncio's loop alone
def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    loops: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
    if item.get_closest_marker("both_loops"):
        loops["uvloop"] = uvloop.new_event_loop
        if config.getoption("--compiled"):
            del loops["asyncio"]
    return loops


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing counts as lasting only because a second went by: a machine may stand still for longer than that."""
    monkeypatch.setattr(outgoing, "WATCH_AFTER", 600.0)
    monkeypatch.setattr(policy, "_SOON", 600.0)


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    """The module's own, to be paused, stopped and searched; what it holds outlives that."""
    with RedisServer(persist=True) as server:
        yield server


@pytest.fixture
async def submitted(redis_server: RedisServer) -> AsyncIterator[Submitted]:
    async with serving(redis_server) as there:
        yield there
