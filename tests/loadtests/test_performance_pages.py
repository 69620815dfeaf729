"""What the documents say of speed is what docs/performance/*.json says, and the arithmetic of docs/scaling.md is right."""

import copy
import math
import re
import statistics
from pathlib import Path

import pytest

from loadtests import pages
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
    text = (ROOT / page).read_text("utf-8")
    assert pages.filled(text, other) != text


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
    shown = set(re.findall(r"\]\(performance/([a-z]+\.svg)\)", (ROOT / "docs/performance.md").read_text("utf-8")))
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
    samples = [
        sample for sample in KEPT["gateway"].samples if (sample["server"], sample["connections"]) == ("oncegate", 32)
    ]
    cpu = {
        (mode, process): statistics.median(sample["cpu_us"][process] for sample in samples if sample["mode"] == mode)
        for mode in ("first", "replay") for process in ("server", "redis")
    }  # fmt: skip
    million = next(look for look in KEPT["cost"].select(part="soak") if look["records"] >= 1_000_000)
    # A million requests a second, 95% of them first requests; cores 60% busy; 60% of 64 GiB filled; a replica of each master.
    gateway_cores = math.ceil((0.95 * cpu["first", "server"] + 0.05 * cpu["replay", "server"]) / 0.6)
    redis_cores = math.ceil((0.95 * cpu["first", "redis"] + 0.05 * cpu["replay", "redis"]) / 0.6)
    records = 950_000 * 86_400
    held = records * million["redis_bytes_per_record"]
    masters = max(redis_cores, math.ceil(held / (0.6 * 64 * 2**30)))
    nodes = 2 * masters
    row = (
        f"| 1,000,000 | 24 h | {gateway_cores:,} | {redis_cores:,} | {records:.2g} | {held / 2**40:,.2f} "
        f"| {masters:,} | {nodes:,} | {math.ceil(nodes / 1000):,} |"
    )
    assert row in (ROOT / "docs/scaling.md").read_text("utf-8")


def test_a_small_load_needs_a_core_of_each_and_little_memory() -> None:
    costs = Costs(gateway_first=100, gateway_replay=50, redis_first=20, redis_replay=10, record_bytes=1024)
    need = Need.of(1000, 1, costs, Assumptions(first_share=1, busy=0.5, node_memory_gib=1, filled=0.5, replicas=2))
    assert (need.gateway_cores, need.redis_cores, need.records) == (1, 1, 3_600_000)
    assert need.memory_tib == pytest.approx(3_600_000 * 1024 / 2**40)
    assert (need.masters, need.nodes, need.clusters) == (7, 21, 1)  # 3.43 GiB in halves of one
