"""The aims, and what was measured of each: from source, and compiled."""

from dataclasses import dataclass

from loadtests import builds, cost_report, duplicates, gateway_report, middleware_report
from loadtests.bed import OURS
from loadtests.gateway import MODES as GATEWAY_MODES
from loadtests.middleware import MODES as MIDDLEWARE_MODES
from loadtests.report import Results, Table


@dataclass(frozen=True)
class Aim:
    """A figure that was promised, and by build what was measured; a build that is not in it was not measured."""

    what: str
    measured: dict[str, float]
    bound: float
    least: bool
    """Whether the bound is what it should be at least; else at most."""

    def reached(self, build: str) -> bool:
        """Whether what was measured of a build keeps to the bound."""
        figure = self.measured[build]
        return figure >= self.bound if self.least else figure <= self.bound

    def row(self) -> list[str]:
        """For the table."""
        cells = [self.what, f"{'>=' if self.least else '<='} {self.bound:g}"]
        for build in builds.BUILDS:
            if build in self.measured:
                figure = f"{self.measured[build]:.2f}".rstrip("0").rstrip(".")
                cells += [figure, "yes" if self.reached(build) else "**no**"]
            else:
                cells += ["-", "-"]
        return cells


def table(results: dict[str, Results]) -> Table:
    """Each figure that was promised beside those that were measured."""
    aims = [*_middleware(results["middleware"]), *_gateway(results["gateway"])]
    aims += [*_cost(results["cost"]), _storm(results["duplicates"])]
    head = ["what (medians)", "aim", "from source", "reached", "compiled", "reached"]
    return Table("", head, [aim.row() for aim in aims])


def _middleware(results: Results) -> list[Aim]:
    aims = []
    names = {build: OURS[build] for build in builds.of(results)}

    for mode, least in (("none", 0.97), ("first", 0.8), ("replay", 4.0)):
        shares = {build: middleware_report.of_alone(results, name, mode).median for build, name in names.items()}
        aims.append(Aim(f"middleware, {MIDDLEWARE_MODES[mode]}: CPU, app alone = 1", shares, least, least=True))
    for mode, least in (("first", 1.8), ("replay", 4.0)):
        peer = middleware_report.best_peer(results, mode)
        ratios = {build: middleware_report.of_peer(results, name, peer, mode).median for build, name in names.items()}
        aims.append(Aim(f"middleware, {MIDDLEWARE_MODES[mode]}: CPU, {peer} = 1", ratios, least, least=True))
    return aims


def _gateway(results: Results) -> list[Aim]:
    aims = []
    names = {build: OURS[build] for build in builds.of(results)}
    for mode, least in (("none", 0.38), ("first", 0.8), ("replay", 0.6)):
        for connections in results.settings["connections"]:
            cpu = {
                build: gateway_report.cpu_ratio(results, mode, connections, name).median
                for build, name in names.items()
            }
            what = (
                f"gateway, {GATEWAY_MODES[mode]}, {connections} connections: CPU, {gateway_report.reference(mode)} = 1"
            )
            aims.append(Aim(what, cpu, least, least=True))
    for mode in ("first", "replay"):
        p99 = {build: gateway_report.p99_ratio(results, mode, 256, name).median for build, name in names.items()}
        aims.append(
            Aim(f"gateway, {GATEWAY_MODES[mode]}, 256 connections: p99, nginx + Lua = 1", p99, 1.0, least=False)
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
    return [Aim(what, {build: figure}, most, least=False) for what, (figure, most) in figures.items()]


def _storm(results: Results) -> Aim:
    largest = results.settings["storms"][-1]
    arrivals = {
        build: max(sample["arrivals"] for sample in duplicates.of_build(results, build, size=largest))
        for build in builds.of(results)
    }
    return Aim(f"arrivals of {largest:,} concurrent duplicates", arrivals, 1, least=False)
