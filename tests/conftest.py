"""What all tests share: one redis-server for the whole run, and where they are asked for, servers that belong together."""

import gc
import importlib.util
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

from testing import fetching
from testing.brokers import RabbitServer
from testing.groups import ClusterGroup, SentinelGroup
from testing.servers import RedisServer

# What an example takes says something of the machine only; it may stand still for seconds.
hypothesis.settings.register_profile("patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("patient")


LONGEST = (
    "tests/brokers/test_storm.py",  # with it begin all of tests/brokers, in one process: longer than any file
    "tests/sql/inbox/test_inbox_run.py",
    "tests/test_user_types.py",
    "tests/docs/test_site.py",
    "tests/docs/test_forms.py",
    "tests/foreign/test_console.py",
    "tests/app/demo/test_page.py",
    "tests/app/demo/test_processes.py",
    "tests/app/operators/test_openapi_operations.py",
    "tests/system/test_processes.py",  # it waits for most of its time
    "tests/test_packaging.py",
    "tests/loadtests/test_benches.py",
    "tests/docs/test_blocks.py",
    "tests/sql/inbox/test_kills.py",
    "tests/sql/outbox/test_relay_run.py",
    "tests/sql/handlers/test_batches.py",
    "tests/brokers/test_kills.py",
    "tests/system/test_alerts.py",
    "tests/system/test_worker_alerts.py",
    "tests/system/test_leases.py",
    "tests/system/test_submission.py",
    "tests/app/gateway/test_cost_is_linear.py",
    "tests/system/test_cache_faults.py",
    "tests/sql/operators/test_api.py",
    "tests/sql/database/test_roles.py",
    "tests/system/test_replacement.py",
    "tests/sql/inbox/test_forgetting.py",
)
"""Files that take longest. They begin first: one of them at the end would have a process to itself, and the others wait."""
WAITING = ("tests/system/", "tests/worker/")
"""Where tests wait for six sevenths of their time, for leases and time limits. Together they would leave a core idle."""
RABBITMQ = {
    "tests/brokers/": "rabbitmq",
    "tests/sql/inbox/test_example.py": "rabbitmq, consumers of databases",
    "tests/sql/inbox/test_inbox_run.py": "rabbitmq, consumers of databases",
    "tests/sql/order/test_order_run.py": "rabbitmq, consumers of databases",
}
"""The tests of one group share a RabbitMQ, and with it a process: it takes six seconds to start. All in one would end last."""


GROUPS = {("store", "sentinel"), ("store", "cluster")}
"""The cases of a parameter that each test runs once, on one of its other parameters' cases.

What servers that belong together add is who is sent a command; what it does is the same script's work as on one server.
"""
COMPILED_ONCE = {(name, case) for name in ("store", "cache") for case in ("redis", "postgresql")}
"""The same for the compiled build: what a cache answers is taken in the same compiled code, whatever it is an answer to."""
FAST = ("tests/cache", "tests/middleware", "tests/app", "tests/test_names.py", "tests/test_added_headers.py")
"""What ``--fast`` runs: of these the files that start no process, but for the one Redis server that they all share.

The law, admission, the gateway's fast path and what it answers retries with are all in it. Left out are, of the same rooms, the
command line, what several processes do at once, kills, and what several Redis servers do together.
"""
OTHER_SERVERS = {"sentinel", "cluster", "postgresql", "sentinel_group", "cluster_group", "records_server"}
"""Cases of parameters, and fixtures, that are of other servers than one Redis: with ``--fast`` they are left out, too."""
_STARTING = (
    r"subprocess|multiprocessing|testing\.(?:brokers|command_line|gateway|groups|postgresql|template|wheelhouse)"
)
_OF_PROCESSES = re.compile(rf"^(?:import|from) (?:{_STARTING})\b", re.M)
"""The import of a file that starts them."""


class FilesTogether(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist doesn't show its types
    """A scheduler that gives a process all tests of a file, since they share servers, and those of a `RABBITMQ` group."""

    # pytest-xdist's own `--dist loadgroup` marks tests where pytest 9.2 doesn't look any more: in silence each file's tests,
    # and with them its servers, were in all processes.
    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return next((group for place, group in RABBITMQ.items() if file.startswith(place)), file)


_ran_in: dict[str, set[str]] = {}
"""The processes that ran a file's tests."""


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FilesTogether:
    """Whatever ``--dist`` says."""
    return FilesTogether(config, log)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if process := getattr(report, "worker_id", None):
        _ran_in.setdefault(report.nodeid.partition("::")[0], set()).add(process)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail where a file's tests were not together: only the time would show it."""
    if apart := sorted(file for file, processes in _ran_in.items() if len(processes) > 1):
        session.config.get_terminal_writer().line(f"\nin several processes, see FilesTogether: {', '.join(apart)}")
        session.exitstatus = session.exitstatus or pytest.ExitCode.INTERNAL_ERROR


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="run what starts no process but Redis: two minutes")
    parser.addoption("--long", action="store_true", help="also run what is marked as long: minutes more")
    parser.addoption(
        "--compiled", action="store_true", help="the tests are of the compiled build, which is on PYTHONPATH"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Tests must not pass for a build that they have not seen; the fast ones must not need what is fetched."""
    if config.getoption("--fast"):
        fetching.allowed = frozenset({"redis"})
    spec = importlib.util.find_spec("oncegate.middleware.admission.admission")
    there = spec.origin if spec is not None else None
    if (there or "").endswith(".so") is not config.getoption("--compiled"):
        wanted = "the compiled build, by --compiled" if config.getoption("--compiled") else "the source"
        raise pytest.UsageError(f"the tests are to be of {wanted}, and would be of {there}: see PYTHONPATH")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``--fast`` a file, or a folder, that has no part in it is not even imported. None: as pytest decides."""
    if not config.getoption("--fast"):
        return None
    name = collection_path.relative_to(config.rootpath).as_posix()
    if collection_path.is_dir():
        return not any(f"{part}/".startswith(f"{name}/") or f"{name}/".startswith(f"{part}/") for part in FAST) or None
    is_in = any(f"{name}/".startswith(f"{part}/") for part in FAST)
    return not is_in or bool(_OF_PROCESSES.search(collection_path.read_text("utf-8"))) or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    compiled = config.getoption("--compiled")
    left_out = {"interpreted": "looks into what is compiled"} if compiled else {"compiled": "needs --compiled"}
    if not config.getoption("--long"):
        left_out["long"] = "needs --long"
    _leave_out(config, items, GROUPS | COMPILED_ONCE if compiled else GROUPS)
    if config.getoption("--fast"):
        _leave_out_other_servers(config, items)
    turn = _turns(dict.fromkeys(item.nodeid.partition("::")[0] for item in items))
    items.sort(key=lambda item: turn[item.nodeid.partition("::")[0]])  # stable: a file's tests stay as they were
    for item in items:
        for mark, reason in left_out.items():
            if item.get_closest_marker(mark):
                item.add_marker(pytest.mark.skip(reason=reason))


def _turns(files: Iterable[str]) -> dict[str, float]:
    """When each file begins: the longest first; then those of `WAITING` spread among the others, each kind in its order."""
    turn: dict[str, float] = {name: number - len(LONGEST) for number, name in enumerate(LONGEST)}
    rest = [file for file in files if file not in turn]
    for waits in (True, False):
        kind = [file for file in rest if file.startswith(WAITING) is waits]
        turn |= {file: (number + 0.5) / len(kind) for number, file in enumerate(kind)}
    return turn


def _leave_out(config: pytest.Config, items: list[pytest.Item], once: set[tuple[str, str]]) -> None:
    """Leave out all but the first of each test that have a case of ``once``."""
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    seen: set[tuple[str, str, str]] = set()
    for item in items:
        parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        cases = {(item.nodeid.partition("[")[0], name, case) for name, case in once if parameters.get(name) == case}
        (left_out if cases & seen else kept).append(item)
        seen |= cases
    items[:] = kept
    config.hook.pytest_deselected(items=left_out)


def _leave_out_other_servers(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        cases = item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
        uses = {*getattr(item, "fixturenames", ()), *(case for case in cases if isinstance(case, str))}
        (left_out if uses & OTHER_SERVERS else kept).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left_out)


def pytest_sessionstart() -> None:
    """Thousands of tests are there to stay: the garbage collector need not look at them again and again."""
    gc.disable()
    gc.set_threshold(10_000, 20, 20)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def authorities_read_once() -> Iterator[None]:
    """Each client of httpx reads all public authorities for 20 ms; hundreds are made, and none of them meets one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("httpx._transports.default.create_ssl_context", cache(httpx.create_ssl_context))
        yield


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
def rabbit_broker_url() -> Iterator[str]:
    """Shared: keep to a queue of your own. `RABBITMQ` names the files that use it."""
    with RabbitServer() as server:
        yield server.url


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
