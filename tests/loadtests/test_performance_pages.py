"""What the documents say of speed is what docs/performance/*.json says, and the arithmetic of docs/scaling.md is right."""

import copy
import math
import re
import statistics
from pathlib import Path

import pytest
from click.testing import CliRunner

from loadtests import aims, builds, duplicates, pages
from loadtests.__main__ import main
from loadtests.capacity import Assumptions, Costs, Need

ROOT = Path(__file__).parent.parent.parent
KEPT = pages.kept()


@pytest.mark.parametrize("page", pages.PAGES)
def test_a_page_is_what_the_results_make_of_it(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    assert pages.MARKED.search(text)
    assert pages.filled(text, KEPT) == text, "run scripts/performance"


@pytest.mark.parametrize("page", pages.PAGES)
def test_other_results_would_make_another_page(page: str) -> None:
    other = copy.deepcopy(KEPT)
    for sample in other["gateway"].samples:
        if sample["server"] == "oncegate":
            sample["cpu_us"]["server"] *= 2
            sample["p50_ms"] *= 2
    for bench in ("inbox", "order"):
        for sample in other[bench].select(handler="one"):
            sample["per_s"] *= 2
    for sample in other["relay"].select(relays=3):
        sample["per_s"] *= 2
    for sample in other["projections"].select(guard="column recipe"):
        sample["per_s"] *= 2
    text = (ROOT / page).read_text("utf-8")
    assert pages.filled(text, other) != text


def test_what_says_nothing_fills_no_page() -> None:
    for option in ("--quick", "--out=elsewhere"):
        done = CliRunner().invoke(main, ["inbox", "--fill", option])
        assert (done.exit_code, "--fill is for results in their own folder" in done.output) == (2, True)


def of_source(results: pages.Everything) -> pages.Everything:
    """The same results, as if there had been no compiled build."""
    changed = copy.deepcopy(results)
    for each in changed.values():
        each.settings["builds"] = [builds.SOURCE]
        each.samples = [
            sample
            for sample in each.samples
            if "compiled" not in sample.get("server", "") and sample.get("build") != builds.COMPILED
        ]
        each.checks = {name: check for name, check in each.checks.items() if "compiled" not in name}
    pythons = changed["pythons"].settings
    pythons["environments"] = [each for each in pythons["environments"] if each["build"] == builds.SOURCE]
    return changed


def of_both(results: pages.Everything) -> pages.Everything:
    """The same results, as if the compiled build took half the time of the one from source for everything."""
    changed = of_source(results)
    for name in ("gateway", "middleware", "duplicates"):
        changed[name].settings["builds"] = [builds.SOURCE, builds.COMPILED]
    changed["cost"].settings["builds"] = [builds.COMPILED]
    for name in ("gateway", "middleware"):
        for sample in changed[name].select(server="oncegate"):
            cpu = {**sample["cpu_us"], "server": sample["cpu_us"]["server"] / 2}
            faster = {"requests_per_s": 2 * sample["requests_per_s"], "p99_ms": sample["p99_ms"] / 2, "cpu_us": cpu}
            if "turns" in sample:
                faster["turns"] = {**sample["turns"], "server": sample["turns"]["server"] / 2}
            changed[name].samples.append({**sample, **faster, "server": "oncegate, compiled"})
        changed[name].checks["oncegate, compiled"] = changed[name].checks["oncegate"]
    floors = changed["middleware"].select(server="floor, with Redis")
    changed["middleware"].samples += [{**sample, "server": "floor, with Redis, compiled"} for sample in floors]
    changed["duplicates"].samples += [
        {**sample, "build": builds.COMPILED, "seconds": sample["seconds"] / 2}
        for sample in changed["duplicates"].samples
    ]
    return changed


def rows(results: pages.Everything) -> dict[str, list[str]]:
    return {row[0]: list(row[1:]) for row in aims.table(results).rows}


def test_pages_are_made_of_results_without_the_compiled_build() -> None:
    results = of_source(KEPT)
    for page in pages.PAGES:
        text = pages.filled((ROOT / page).read_text("utf-8"), results)
        made = "".join(found[0] for found in pages.MARKED.finditer(text))
        assert "compiled" not in made.replace("| aim compiled |", "")
    for what, (_, figure, reached, *compiled) in rows(results).items():
        assert re.fullmatch(r"[0-9.]+", figure), what
        assert reached in ("yes", "**no**")
        assert compiled == ["-", "-", "-"]


def test_pages_have_both_builds_where_both_were_measured() -> None:
    source, both = rows(of_source(KEPT)), rows(of_both(KEPT))
    for what, (aim, figure, reached, compiled_aim, compiled, reached_compiled) in both.items():
        if what.startswith(("gateway,", "middleware,")):
            assert [aim, figure, reached] == source[what][:3]
            factor = 0.5 if "p99" in what else 2
            assert float(compiled) == pytest.approx(factor * float(figure), abs=0.016)  # both are rounded
            assert reached_compiled in ("yes", "**no**")
            assert compiled_aim[:2] == aim[:2]
        elif "duplicates" in what:
            assert (figure, compiled) == ("1", "1")
        else:  # cost is of one build
            assert (aim, figure, reached) == ("-", "-", "-")
            assert [compiled_aim, compiled, reached_compiled] == source[what][:3]


@pytest.mark.parametrize(
    ("least", "measured", "row"),
    [
        (True, {"source": 0.42, "compiled": 0.7}, [">= 0.5", "0.42", "**no**", ">= 0.7", "0.7", "yes"]),
        (True, {"compiled": 0.699}, ["-", "-", "-", ">= 0.7", "0.7", "**no**"]),  # what was measured, not what is shown
        (False, {"source": 0.5, "compiled": 0.71}, ["<= 0.5", "0.5", "yes", "<= 0.7", "0.71", "**no**"]),
        (False, {"source": 0.1}, ["<= 0.5", "0.1", "yes", "-", "-", "-"]),
    ],
)
def test_an_aim_is_reached_by_each_build_for_itself(least: bool, measured: dict[str, float], row: list[str]) -> None:
    assert aims.Aim("speed", measured, {"source": 0.5, "compiled": 0.7}, least).row() == ["speed", *row]


def test_each_page_tells_both_builds_where_both_were_measured() -> None:
    readme, scaling, whole = (
        pages.filled((ROOT / page).read_text("utf-8"), of_both(KEPT))
        for page in ("README.md", "docs/scaling.md", "docs/performance.md")
    )
    assert "|  | first request | replay | first request, compiled | replay, compiled |" in readme
    assert re.search(r"full: ms added to nginx's proxy_pass at p50 / p99 (\| -?[0-9.]+ / -?[0-9.]+ ){4}\|", readme)
    assert re.search(r"requests per second and core (\| [0-9,]+ ){4}\|", readme)
    assert re.search(r"A million keys take [0-9]+ MB of Redis", readme)
    assert "| gateway process, compiled |" in scaling
    assert "| gateway cores | gateway cores, compiled |" in scaling
    assert "| 32 | oncegate, compiled | first request |" in whole
    assert "| oncegate, compiled | replay |" in whole
    assert "| compiled | 1 | wait=30 | 10 |" in whole
    assert "All tables of this section: oncegate, compiled." in whole


def test_a_storm_is_told_of_each_build_for_itself() -> None:
    [source], [both] = (duplicates.tables(each(KEPT)["duplicates"]) for each in (of_source, of_both))
    of_build = {build: [row for row in both.rows if row[0] == build] for build in builds.BUILDS}
    assert of_build["source"] == source.rows
    for row, compiled in zip(source.rows, of_build["compiled"], strict=True):
        assert float(compiled[-1].split()[0]) == pytest.approx(float(row[-1].split()[0]) / 2, abs=0.001)


def test_a_build_that_takes_half_the_time_needs_half_the_gateways() -> None:
    results = of_both(KEPT)
    source, compiled = (
        Costs.measured(results["gateway"], results["cost"], build) for build in (builds.SOURCE, builds.COMPILED)
    )
    assert compiled.gateway_first == pytest.approx(source.gateway_first / 2)
    assert compiled.gateway_replay == pytest.approx(source.gateway_replay / 2)
    assert (compiled.redis_first, compiled.redis_replay) == (source.redis_first, source.redis_replay)


def test_a_gateway_measured_compiled_beside_older_results_of_the_others_makes_pages() -> None:
    mixed = {**of_source(KEPT), "gateway": of_both(KEPT)["gateway"]}
    for page in pages.PAGES:
        pages.filled((ROOT / page).read_text("utf-8"), mixed)
    assert rows(mixed)["middleware, replay: CPU, app alone = 1"][3:] == ["-", "-", "-"]


def test_every_part_is_on_a_page_once() -> None:
    named = [name for page in pages.PAGES for _, name, _ in pages.MARKED.findall((ROOT / page).read_text("utf-8"))]
    assert sorted(named) == sorted(pages.PARTS)


def test_the_results_are_of_whole_runs() -> None:
    for name, results in KEPT.items():
        assert results.bench == name
        assert results.settings["quick"] is False
        assert results.about["command"].startswith("scripts/bench")
    assert KEPT["cost"].select(part="soak")[-1]["records"] >= 1_000_000
    assert max(KEPT["duplicates"].settings["storms"]) == 1000


def test_every_plot_is_there_and_shown() -> None:
    texts = [(ROOT / page).read_text("utf-8") for page in pages.PAGES if page.startswith("docs/")]
    shown = set(re.findall(r"\]\(performance/([a-z]+\.svg)\)", "".join(texts)))
    assert shown == {path.name for path in pages.KEPT.glob("*.svg")}


def test_every_bench_that_the_page_names_is_a_command() -> None:
    text = (ROOT / "docs/performance.md").read_text("utf-8")
    assert set(re.findall(r"^\| `scripts/bench ([a-z]+)` \|", text, re.MULTILINE)) == set(main.commands)


def test_quick_results_are_not_taken_over(tmp_path: Path) -> None:
    (tmp_path / "gateway").mkdir()
    (tmp_path / "gateway" / "results.json").write_text('{"settings": {"quick": true}}')
    assert pages.take(tmp_path) == []


def test_the_numbers_of_machines_follow_from_what_was_measured() -> None:
    """The same arithmetic, step by step, from the bare JSON."""

    def cores(server: str, process: str) -> int:
        samples = [
            sample for sample in KEPT["gateway"].samples if (sample["server"], sample["connections"]) == (server, 32)
        ]
        first, replay = (
            statistics.median(sample["cpu_us"][process] for sample in samples if sample["mode"] == mode)
            for mode in ("first", "replay")
        )
        wanted: int = math.ceil((0.95 * first + 0.05 * replay) / 0.6)
        return wanted

    million = next(sample for sample in KEPT["cost"].select(part="soak") if sample["records"] >= 1_000_000)
    # A million requests a second, 95% of them first requests; cores 60% busy; 60% of 64 GiB filled; a replica of each master.
    redis_cores = cores("oncegate", "redis")
    gateway_cores = " | ".join(f"{cores(server, 'server'):,}" for server in ("oncegate", "oncegate, compiled"))
    records = 950_000 * 86_400
    held = records * million["redis_bytes_per_record"]
    masters = max(redis_cores, math.ceil(held / (0.6 * 64 * 2**30)))
    nodes = 2 * masters
    row = (
        f"| 1,000,000 | 24 h | {gateway_cores} | {redis_cores:,} | {records:.2g} | {held / 2**40:,.2f} "
        f"| {masters:,} | {nodes:,} | {math.ceil(nodes / 1000):,} |"
    )
    assert row in (ROOT / "docs/scaling.md").read_text("utf-8")


def test_a_small_load_needs_a_core_of_each_and_little_memory() -> None:
    costs = Costs(gateway_first=100, gateway_replay=50, redis_first=20, redis_replay=10, record_bytes=1024)
    need = Need.of(1000, 1, costs, Assumptions(first_share=1, busy=0.5, node_memory_gib=1, filled=0.5, replicas=2))
    assert (need.gateway_cores, need.redis_cores, need.records) == (1, 1, 3_600_000)
    assert need.memory_tib == pytest.approx(3_600_000 * 1024 / 2**40)
    assert (need.masters, need.nodes, need.clusters) == (7, 21, 1)  # 3.43 GiB in halves of one


def test_another_machine_s_figures_stand_beside_ours_with_what_they_were_measured_on() -> None:
    other = copy.deepcopy(KEPT["gateway"])
    other.about["machine"] |= {"processor": "A faster one", "python_build": "PGO, LTO, -O3"}
    text = pages.on_other_machines([KEPT["gateway"], other])
    assert re.search(r"^A faster one, .*Python [0-9.]+ \(PGO, LTO, -O3\); server apart", text, re.MULTILINE)
    assert KEPT["gateway"].about["machine"]["processor"] in text
    assert text.count("| oncegate |") == 2 * pages.on_other_machines([other]).count("| oncegate |") > 0
