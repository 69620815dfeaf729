"""Three masters of a Redis Cluster under four gateway processes, and one Redis under the same.

Whether the rate grows with the masters is seen where each master has a core. Here they share two with all else, so that what is
measured is what each has to do for a request: a cluster can do so many more as its busiest master has less of it.
"""

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final

from loadtests import builds, machine, processes
from loadtests.load import QUICK_SECONDS, Target, Wrk
from loadtests.processes import BenchError, Process
from loadtests.report import Results, Table, measured, progress, spread
from testing.groups import ClusterGroup
from testing.servers import RedisServer

GATEWAYS: Final = 4
CONNECTIONS: Final = 64
ONE, THREE = "one Redis", "three masters"
MODES: Final = {"first": "first request", "replay": "replay"}
LARGEST: Final = 1.2
"""What the busiest master's commands may be of the idlest one's."""


@dataclass(frozen=True)
class _Running:
    gateway: Process
    masters: list[RedisServer]
    """Redis servers; one, or those of a cluster."""
    upstream: Process
    behind: Process
    """The Redis of the bed, which wrk's measurements name."""

    def used(self) -> list[float]:
        """The processor time that each master has used, in s."""
        return [machine.cpu_seconds(int(each.command("INFO", "server")["process_id"])) for each in self.masters]


def run(*, rounds: int, seconds: float, build: str | None = None, quick: bool) -> Results:
    """Measure first requests and replays on both, ``rounds`` times. Raises `BenchError` where a gateway answers wrongly."""
    compiled = builds.chosen(build, quick=quick)
    rounds, seconds = (1, QUICK_SECONDS) if quick else (rounds, seconds)
    settings: dict[str, Any] = {
        "builds": [builds.COMPILED if compiled else builds.SOURCE], "quick": quick, "rounds": rounds, "seconds": seconds,
        "connections": CONNECTIONS, "gateways": GATEWAYS,
    }  # fmt: skip
    results = Results("cluster", settings)
    everywhere = ",".join(map(str, sorted(set(machine.cores()))))
    wrk = Wrk(everywhere, warm_up=0)
    with progress() as bar:
        task = bar.add_task("cluster", total=rounds * 2 * len(MODES))
        for number, what in product(range(rounds), (ONE, THREE)):
            with _running(what, everywhere, compiled, patient=quick) as running:
                for mode in MODES:
                    bar.update(task, description=f"{what}, {MODES[mode]}, round {number + 1}")
                    sample = _measure(running, wrk, mode, seconds)
                    results.samples.append({"on": what, "mode": mode, "round": number, **sample})
                    bar.advance(task)
    return results


@contextlib.contextmanager
def _running(what: str, cores: str, compiled: Path | None, *, patient: bool) -> Iterator[_Running]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="oncegate-bench-")))
        behind = stack.enter_context(processes.redis_server(folder, cores))
        upstream = processes.nginx("upstream.conf", core=cores, folder=folder, upstream_port=processes.free_port())
        stack.enter_context(upstream)
        if what == ONE:
            servers = [stack.enter_context(RedisServer())]
            url = servers[0].url
        else:
            cluster = stack.enter_context(ClusterGroup())
            servers, url = cluster.servers[:3], cluster.url
        gateway = processes.oncegate(
            upstream.url, url, core=cores, folder=folder, build=compiled, workers=GATEWAYS, patient=patient
        )
        stack.enter_context(gateway)
        builds.verify(gateway, compiled=compiled is not None)
        yield _Running(gateway, servers, upstream, behind)


def _measure(running: _Running, wrk: Wrk, mode: str, seconds: float) -> dict[str, Any]:
    """One measurement, with what each master did for it."""
    target = Target(running.gateway.url, {"server": running.gateway}, lambda: 0, running.behind)
    seed = wrk.prepare(target, mode, connections=CONNECTIONS)
    wrk.run(
        target, mode, seed if mode == "replay" else f"{seed}w", connections=CONNECTIONS, seconds=max(1, int(seconds))
    )
    before, calls = running.used(), [each.calls("evalsha") for each in running.masters]
    sample = wrk.run(target, mode, seed, connections=CONNECTIONS, seconds=seconds)
    requests = sample["requests"]
    used = [(after - at) / requests * 1e6 for after, at in zip(running.used(), before, strict=True)]
    sent = [(each.calls("evalsha") - at) / requests for each, at in zip(running.masters, calls, strict=True)]
    if min(sent) <= 0:
        raise BenchError("cluster: a master was sent nothing")
    return {
        "requests_per_s": sample["requests_per_s"],
        "gateway_us": sample["cpu_us"]["server"],
        "redis_us": sum(used),
        "busiest_us": max(used),
        "sent": sum(sent),
        "shares": [each / sum(sent) for each in sent],
        "largest_to_smallest": max(sent) / min(sent),
        "errors": sample["errors"],
    }


def tables(results: Results) -> list[Table]:
    """What a request costs the masters, and how evenly."""
    rows = []
    for (mode, kind), what in product(MODES.items(), (ONE, THREE)):
        samples = results.select(on=what, mode=mode)
        busiest = spread(samples, "busiest_us")
        shares = [f"{min(each['shares']):.3f}-{max(each['shares']):.3f}" for each in samples[:1]]
        rows.append([
            what, kind, spread(samples, "sent").text(2), shares[0] if what == THREE else "1",
            spread(samples, "gateway_us").text(1), spread(samples, "redis_us").text(1), busiest.text(1),
            f"{1e6 / busiest.median:,.0f}", spread(samples, "requests_per_s").text(),
        ])  # fmt: skip
    head = [
        "Redis", "request", "scripts", "a master's share of them", "gateway CPU, us", "Redis CPU, us, of all masters",
        "of the busiest master", "its core full at, requests/s", "requests/s here",
    ]  # fmt: skip
    note = (
        f"{results.settings['gateways']} gateway processes, {results.settings['connections']} connections; all on two cores. "
        f"{measured(results)}"
    )
    return [Table("Masters under four gateways", head, rows, note)]
