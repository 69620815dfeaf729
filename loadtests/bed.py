"""What a measurement stands on: an upstream, a Redis, and what is between them, started together and ended together."""

import contextlib
import re
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from loadtests import builds, processes
from loadtests.load import Target
from loadtests.processes import BenchError, Process

PLAIN, LUA, ONCEGATE, COMPILED = "nginx proxy_pass", "nginx + Lua", "oncegate", "oncegate, compiled"
OURS = {builds.SOURCE: ONCEGATE, builds.COMPILED: COMPILED}
"""What a server of each build is called."""
CACHE_SECONDS = 0.5
"""For Redis to answer, as the gateway has it by default: nginx has as much."""


@dataclass
class Bed:
    """What is running: where each server under test listens, and the process that it is."""

    urls: dict[str, str]
    servers: dict[str, Process]
    redis: Process
    upstream: Process
    queries: int = 0
    """How often the upstream was asked for its arrivals, of which that is one each time."""

    def target(self, name: str) -> Target:
        """One of the servers, to be measured."""
        watched = {"server": self.servers[name], "redis": self.redis, "upstream": self.upstream}
        return Target(self.urls[name], watched, self.arrivals, self.redis)

    def arrivals(self) -> int:
        """How many requests the upstream has had, this question left out."""
        with urllib.request.urlopen(f"{self.upstream.url}/.arrivals", timeout=30) as answer:
            found = re.search(rb"requests\s+\d+ \d+ (\d+)", answer.read())
        if found is None:
            raise BenchError("the upstream does not tell its arrivals")
        self.queries += 1
        return int(found[1]) - self.queries


@contextlib.contextmanager
def gateways(
    server_cores: int | str,
    load_cores: int | str,
    compiled: Path | None = None,
    *,
    workers: int = 1,
    patient: bool = False,
) -> Iterator[Bed]:
    """nginx's proxy_pass, nginx + Lua, and oncegate (from source, and ``compiled``), on one upstream and one Redis.

    Each has so many ``workers``. ``patient`` ones wait for Redis for longer than anybody would have them.
    """
    seconds = processes.PATIENCE if patient else CACHE_SECONDS
    with contextlib.ExitStack() as stack:
        folder, redis, upstream = stack.enter_context(behind(load_cores))
        ports = {"plain_port": processes.free_port(), "lua_port": processes.free_port()}
        words = {**ports, "upstream_port": upstream.port, "redis_port": redis.port, "cache_ms": round(seconds * 1000),
                 "master": "off" if workers == 1 else "on", "workers": workers,
                 "multi_accept": "on" if workers == 1 else "off"}  # fmt: skip
        nginx = processes.nginx("nginx.conf", core=server_cores, folder=folder, **words)
        stack.enter_context(nginx)
        urls = {PLAIN: nginx.url, LUA: f"http://127.0.0.1:{ports['lua_port']}"}
        servers = {PLAIN: nginx, LUA: nginx}
        for build, path in builds.measured(compiled).items():
            ours = processes.oncegate(
                upstream.url,
                cache_of(redis),
                core=server_cores,
                folder=folder,
                name=OURS[build],
                build=path,
                workers=workers,
                patient=patient,
            )
            stack.enter_context(ours)
            builds.verify(ours, compiled=path is not None)
            urls[OURS[build]], servers[OURS[build]] = ours.url, ours
        yield Bed(urls, servers, redis, upstream)


@contextlib.contextmanager
def oncegate(
    server_cores: str, load_cores: str, *, workers: int = 1, compiled: Path | None = None, patient: bool = False
) -> Iterator[Bed]:
    """oncegate alone, on an upstream and a Redis: from source, or ``compiled``. It is called `ONCEGATE` either way."""
    with (
        behind(load_cores) as (folder, redis, upstream),
        processes.oncegate(
            upstream.url,
            cache_of(redis),
            core=server_cores,
            folder=folder,
            workers=workers,
            build=compiled,
            patient=patient,
        ) as ours,
    ):
        builds.verify(ours, compiled=compiled is not None)
        yield Bed({ONCEGATE: ours.url}, {ONCEGATE: ours}, redis, upstream)


@contextlib.contextmanager
def environments(
    server_core: int, load_core: int, there: Mapping[Path, bool], *, patient: bool = False
) -> Iterator[Bed]:
    """oncegate as it is installed in each of these environments, by whose names they are called; whether it is compiled there."""
    with contextlib.ExitStack() as stack:
        folder, redis, upstream = stack.enter_context(behind(load_core))
        running = Bed({}, {}, redis, upstream)
        for path, compiled in there.items():
            ours = processes.oncegate(
                upstream.url,
                cache_of(redis),
                core=server_core,
                folder=folder,
                name=path.name,
                environment=path,
                patient=patient,
            )
            stack.enter_context(ours)
            builds.verify(ours, compiled=compiled)
            running.urls[path.name], running.servers[path.name] = ours.url, ours
        yield running


@contextlib.contextmanager
def behind(core: int | str) -> Iterator[tuple[Path, Process, Process]]:
    """A folder for what is written, a Redis, and an upstream."""
    with tempfile.TemporaryDirectory(prefix="oncegate-bench-") as name:
        folder = Path(name)
        upstream = processes.nginx("upstream.conf", core=core, folder=folder, upstream_port=processes.free_port())
        with processes.redis_server(folder, core) as redis, upstream:
            yield folder, redis, upstream


def cache_of(redis: Process) -> str:
    """The cache in it, as a gateway is given it."""
    return f"redis://127.0.0.1:{redis.port}/0"


def versions(running: Bed) -> dict[str, str]:
    """Of the servers around the one under test."""
    with processes.redis_client(running.redis) as client:
        redis = str(client.info("server")["redis_version"])
    return {"redis-server": redis, "nginx": processes.nginx_version()}
