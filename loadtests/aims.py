"""The aims, and what was measured of each: from source, and compiled."""

from dataclasses import dataclass

from loadtests import builds, cost_report, duplicates, gateway_report, middleware_report
from loadtests.bed import OURS
from loadtests.builds import COMPILED, SOURCE
from loadtests.gateway import MODES as GATEWAY_MODES
from loadtests.middleware import MODES as MIDDLEWARE_MODES
from loadtests.report import Results, Table

FLOORS = {SOURCE: "floor, with Redis", COMPILED: "floor, with Redis, compiled"}
"""What no middleware's replay can be faster than, of each build."""


@dataclass(frozen=True)
class Aim:
    """A figure that was promised, and by build what was measured; a build that is not in it was not measured."""

    what: str
    measured: dict[str, float]
    bounds: dict[str, float]
    """By build, too: compiled, more is promised."""
    least: bool
    """Whether a bound is what it should be at least; else at most."""

    def reached(self, build: str) -> bool:
        """Whether what was measured of a build keeps to its bound."""
        figure, bound = self.measured[build], self.bounds[build]
        return figure >= bound if self.least else figure <= bound

    def row(self) -> list[str]:
        """For the table."""
        cells = [self.what]
        for build in builds.BUILDS:
            if build in self.measured:
                figure = f"{self.measured[build]:.2f}".rstrip("0").rstrip(".")
                aim = f"{'>=' if self.least else '<='} {self.bounds[build]:g}"
                cells += [aim, figure, "yes" if self.reached(build) else "**no**"]
            else:
                cells += ["-", "-", "-"]
        return cells


def _of_both(bound: float) -> dict[str, float]:
    return dict.fromkeys(builds.BUILDS, bound)


def table(results: dict[str, Results]) -> Table:
    """Each figure that was promised beside those that were measured."""
    aims = [*_middleware(results["middleware"]), *_gateway(results["gateway"])]
    aims += [*_cost(results["cost"]), _storm(results["duplicates"])]
    head = ["what (medians)", "aim from source", "measured", "reached", "aim compiled", "measured", "reached"]
    return Table("", head, [aim.row() for aim in aims])


def _middleware(results: Results) -> list[Aim]:
    aims = []
    names = {build: OURS[build] for build in builds.of(results)}

    def of_alone(mode: str, names: dict[str, str] = names) -> dict[str, float]:
        return {build: middleware_report.of_alone(results, name, mode).median for build, name in names.items()}

    for mode, compiled in (("none", 0.97), ("first", 0.85), ("replay", 4.0)):
        bounds = _of_both(compiled) | ({SOURCE: 0.8} if mode == "first" else {})
        aims.append(
            Aim(f"middleware, {MIDDLEWARE_MODES[mode]}: CPU, app alone = 1", of_alone(mode), bounds, least=True)
        )
    floors = of_alone("replay", {build: FLOORS[build] for build in names})
    shares = {build: share / floors[build] for build, share in of_alone("replay").items()}
    aims.append(Aim("middleware, replay: CPU, floor with Redis = 1", shares, _of_both(0.9), least=True))
    for mode, least in (("first", 1.8), ("replay", 4.0)):
        peer = middleware_report.best_peer(results, mode)
        ratios = {build: middleware_report.of_peer(results, name, peer, mode).median for build, name in names.items()}
        aims.append(Aim(f"middleware, {MIDDLEWARE_MODES[mode]}: CPU, {peer} = 1", ratios, _of_both(least), least=True))
    return aims


def _gateway(results: Results) -> list[Aim]:
    aims = []
    names = {build: OURS[build] for build in builds.of(results)}
    for mode, source, compiled in (("none", 0.45, 0.75), ("first", 0.9, 1.5), ("replay", 0.8, 1.4)):
        bounds = {SOURCE: source, COMPILED: compiled}
        for connections in results.settings["connections"]:
            cpu = {
                build: gateway_report.cpu_ratio(results, mode, connections, name).median
                for build, name in names.items()
            }
            what = (
                f"gateway, {GATEWAY_MODES[mode]}, {connections} connections: CPU, {gateway_report.reference(mode)} = 1"
            )
            aims.append(Aim(what, cpu, bounds, least=True))
    for mode in ("first", "replay"):
        p99 = {build: gateway_report.p99_ratio(results, mode, 256, name).median for build, name in names.items()}
        aims.append(
            Aim(
                f"gateway, {GATEWAY_MODES[mode]}, 256 connections: p99, nginx + Lua = 1",
                p99,
                _of_both(1.0),
                least=False,
            )
        )
    return aims


def _cost(results: Results) -> list[Aim]:
    sent, largest = results.checks["commands"], cost_report.milestones(results)[-1]
    figures = {
        "Redis commands for a first request": (sent["first"]["sent"], 2),
        "Redis commands for a replay": (sent["replay"]["sent"], 1),
        "Redis bytes per 300-byte record, by MEMORY USAGE": (largest["record_bytes"], 620),
        "the same, with its share of Redis's tables": (largest["redis_bytes_per_record"], 620),
        "gateway memory at the end of the soak, after its first tenth = 1": (cost_report.growth(results)[1], 1.1),
    }
    [build] = builds.of(results)
    return [Aim(what, {build: figure}, _of_both(most), least=False) for what, (figure, most) in figures.items()]


def _storm(results: Results) -> Aim:
    largest = results.settings["storms"][-1]
    arrivals = {
        build: max(sample["arrivals"] for sample in duplicates.of_build(results, build, size=largest))
        for build in builds.of(results)
    }
    return Aim(f"arrivals of {largest:,} concurrent duplicates", arrivals, _of_both(1), least=False)
