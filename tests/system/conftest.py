"""What the system tests share: one ledger, one Redis and a few gateways, each started once per run, when first needed.

Rules that differ are routes of the shared gateways (`ROUTES`), so that only faults need a gateway of their own.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import pytest

from testing.caller import Caller
from testing.gateway import Gateway
from testing.ledger import Ledger
from testing.postgresql import RecordsServer, records_server
from testing.servers import RedisServer
from tests.system.logs import events
from tests.system.proxy import LossyProxy

ROUTES: list[dict[str, Any]] = [
    {"path": "/retry-unknown/*", "on_unknown": "retry"},
    {"path": "/replay-errors/*", "on_error": "replay"},
    {"path": "/impatient/*", "response_timeout": 0.5},
    {"path": "/small/*", "max_request_body": 1000, "max_result": 1000},
    {"path": "/streams/*", "max_result": 100_000},
]
UNHURRIED = 10.0
"""A cache time-out of the shared gateways that only a dead Redis exceeds, and a third of their lease."""


class Start(Protocol):
    def __call__(self, upstream: str, cache: str = ..., **settings: Any) -> Gateway: ...


@pytest.fixture(scope="session")
def _new_log(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Where each gateway logs to, a file of its own."""
    logs = tmp_path_factory.mktemp("gateways")
    numbers = count(1)
    return lambda: logs / f"{next(numbers):03d}.log"


@pytest.fixture(scope="session")
def ledger() -> Iterator[Ledger]:
    with Ledger() as running:
        yield running


class Shared(Protocol):
    """A cache that several gateways share."""

    @property
    def url(self) -> str: ...


@dataclass(frozen=True)
class SharedFile:
    """A file of records."""

    url: str


@pytest.fixture(scope="session")
def records_database() -> Iterator[RecordsServer]:
    with records_server() as server:
        yield server


@pytest.fixture(params=["redis", "sqlite", "postgresql"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Shared:
    """One of each kind. The servers are shared among tests, so each has a namespace of its own."""
    if request.param == "sqlite":
        return SharedFile(f"sqlite:///{tmp_path}/records.db")
    name = "redis_server" if request.param == "redis" else "records_database"
    found: Shared = request.getfixturevalue(name)
    return found


@pytest.fixture(scope="session")
def quiet_redis() -> Iterator[RedisServer]:
    """A Redis for counting: only the gateway under test is on it."""
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def tcp_redis() -> Iterator[RedisServer]:
    """For `proxy`, which knows TCP alone."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def proxy(tcp_redis: RedisServer) -> Iterator[LossyProxy]:
    """Between a gateway and `tcp_redis`."""
    with LossyProxy(tcp_redis.port) as running:
        yield running


@pytest.fixture
async def caller() -> AsyncIterator[Caller]:
    async with Caller() as client:
        yield client


@pytest.fixture
def start(_new_log: Callable[[], Path]) -> Iterator[Start]:
    """Starts a gateway for one test; all are ended with it. Not awaited: `Gateway.ready` does that."""
    with starting(_new_log) as start_one:
        yield start_one


@pytest.fixture(scope="module")
def start_for_module(_new_log: Callable[[], Path]) -> Iterator[Start]:
    """The same for all tests of a module."""
    with starting(_new_log) as start_one:
        yield start_one


@contextmanager
def starting(new_log: Callable[[], Path]) -> Iterator[Start]:
    """Gateways that end with the context. Raises `AssertionError` for one whose log says what it must not."""
    started: list[Gateway] = []
    with ExitStack() as stack:

        def start_one(upstream: str, cache: str = "memory://", **settings: Any) -> Gateway:
            gateway = Gateway(new_log(), upstream, cache, **settings)
            stack.callback(gateway.end)
            started.append(gateway)
            return gateway

        yield start_one
    for gateway in started:
        events(gateway.text())


@pytest.fixture(scope="session")
def trio(_new_log: Callable[[], Path], ledger: Ledger, redis_server: RedisServer) -> Iterator[list[Gateway]]:
    """Three gateways on one Redis."""
    with starting(_new_log) as start:
        gateways = [start(ledger.url, redis_server.url, routes=ROUTES, cache_timeout=UNHURRIED) for _ in range(3)]
        yield [gateway.ready() for gateway in gateways]


@pytest.fixture(scope="session")
def on_memory(_new_log: Callable[[], Path], ledger: Ledger) -> Iterator[Gateway]:
    """One gateway on the embedded cache."""
    with starting(_new_log) as start:
        yield start(ledger.url, routes=ROUTES).ready()


@pytest.fixture(params=["memory", "redis"])
def gateway(request: pytest.FixtureRequest) -> Gateway:
    """A shared gateway, once on each cache."""
    if request.param == "memory":
        found: Gateway = request.getfixturevalue("on_memory")
        return found
    trio: list[Gateway] = request.getfixturevalue("trio")
    return trio[0]
