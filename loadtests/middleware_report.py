"""What the samples of `scripts/bench middleware` say."""

from typing import Any

from loadtests import peers
from loadtests.app import FLOOR, MIDDLEWARES, REDIS_FLOOR
from loadtests.bed import COMPILED, ONCEGATE
from loadtests.middleware import CONNECTIONS, MODES, VARIANTS
from loadtests.report import Results, Spread, Table, errors, spread


def measured(results: Results, *names: str) -> list[str]:
    """Those of the middlewares that were measured, all of `VARIANTS` without ``names``."""
    found = {sample["server"] for sample in results.samples}
    return [name for name in names or [variant.name for variant in VARIANTS] if name in found]


def of_alone(results: Results, name: str, mode: str) -> Spread:
    """The CPU per request of the app alone over that of the app with a middleware, in turn: above 1, this one needs less."""
    return Spread.of(_shares(results, name, mode).values())


def of_peer(results: Results, name: str, peer: str, mode: str) -> Spread:
    """The same, with another middleware in the place of the app alone, each held against the app alone in the same round."""
    ours, theirs = _shares(results, name, mode), _shares(results, peer, mode)
    return Spread.of(share / theirs[number] for number, share in ours.items())


def _shares(results: Results, name: str, mode: str) -> dict[int, float]:
    """By round; of the app alone, 1."""
    samples = results.select(server=name, mode=mode)
    pairs = {sample["round"]: sample.get("turns", {"alone": 1, "server": 1}) for sample in samples}
    return {number: pair["alone"] / pair["server"] for number, pair in pairs.items()}


def best_peer(results: Results, mode: str) -> str:
    """The fastest of the others."""
    return max(peers.PEERS, key=lambda name: spread(results.select(server=name, mode=mode), "requests_per_s").median)


def tables(results: Results) -> list[Table]:
    """Speed, speed against the best of the others, and what the answers were."""
    speed = []
    for name in measured(results):
        for mode, words in MODES.items():
            cell = results.select(server=name, mode=mode)
            if not cell:
                continue
            speed.append([
                name, words, of_alone(results, name, mode).text(2),
                spread(cell, "requests_per_s").text(), spread(cell, "p50_ms").text(2), spread(cell, "p99_ms").text(2),
                spread(cell, "cpu_us", "server").text(), f"{spread(cell, 'cpu_us', 'redis').median:.1f}",
            ])  # fmt: skip
    best = []
    for mode in ("first", "replay"):
        peer = best_peer(results, mode)
        best += [
            [MODES[mode], name, peer, of_peer(results, name, peer, mode).text(2)]
            for name in measured(results, ONCEGATE, COMPILED)
        ]
    checks = list(results.checks["oncegate"])
    answers = [[name, *(outcomes[check] for check in checks)] for name, outcomes in results.checks.items()]
    return [
        Table(
            "Middleware on FastAPI",
            ["middleware", "request", "app alone = 1, by app CPU", "requests/s", "p50, ms", "p99, ms",
             "app CPU, us/request", "Redis CPU, us"],
            speed,
            f"{_notes(results)}Median (least-most) over the rounds. The share of the app alone is of two apps that took turns of "
            f"{results.settings['turns']}; the other figures are of one app at a time. "
            f"{errors(results)}",
        ),
        Table(
            "oncegate against the best of the others",
            ["request", "middleware", "the best", "the best = 1, by app CPU"],
            best,
        ),
        Table("What they answer", ["middleware", *checks], answers),
    ]  # fmt: skip


def _notes(results: Results) -> str:
    """What has to be said of the variants that were measured."""
    notes = {
        FLOOR: f"{FLOOR}: a middleware that answers at once, always the same, in as many field lines as a replay has, and asks "
        "no store: no replay can be faster. ",
        REDIS_FLOOR: f"{REDIS_FLOOR}: the same behind what no replay can do without: a digest of the key, one of the payload, "
        "one round trip to Redis on oncegate's connection. ",
        "alone, frozen": "frozen: an app that has frozen what it holds, for the garbage collector, once it had started; held "
        "against the app alone that has done the same. ",
    }
    return "".join(notes[name] for name in measured(results, *notes))


def plot(results: Results, axes: Any) -> None:
    """The share of the app alone, by kind of request and middleware."""
    names = measured(results, ONCEGATE, COMPILED, *MIDDLEWARES[2:])
    width = 0.8 / len(names)
    for index, name in enumerate(names):
        values = [of_alone(results, name, mode) for mode in MODES]
        bars = [(each.median - each.least, each.most - each.median) for each in values]
        places = [place + (index - (len(names) - 1) / 2) * width for place in range(len(MODES))]
        heights = [each.median for each in values]
        axes.bar(places, heights, 0.92 * width, label=name, yerr=list(zip(*bars, strict=True)), capsize=3)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks(range(len(MODES)), MODES.values())
    axes.set_ylabel("by CPU per request, app alone = 1")
    axes.set_title(f"Middleware on FastAPI, {CONNECTIONS} connections (more is better)")
    axes.legend()
