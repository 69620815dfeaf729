"""Each benchmark, run for a few seconds: it ends, its JSON is whole and can be true. How fast anything was, nobody asks here."""

import json
import platform
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from loadtests import attack, builds, cluster, console, cores, inbox, instructions, order, projections, pythons
from loadtests.__main__ import main
from loadtests.bed import LUA, OURS, PLAIN
from loadtests.duplicates import UPSTREAM_SECONDS
from loadtests.gateway import CELLS, CONNECTIONS
from loadtests.middleware import VARIANTS
from loadtests.processes import BODY, ROOT
from loadtests.report import Results

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the benchmarks read processor times from /proc"),
]


def there() -> list[str]:
    """The builds that a quick run finds."""
    return list(builds.measured(builds.compiled(quick=True)))


def invoke(*arguments: str) -> None:
    """What ``scripts/bench`` does, in this process, which imports once what draws, and PostgreSQL's drivers."""
    done = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output


def bench(name: str, folder: Path) -> dict[str, Any]:
    before = there()
    invoke(name, "--quick", "--out", str(folder))
    return whole(name, folder, before)


def whole(name: str, folder: Path, before: list[str]) -> dict[str, Any]:
    """The results in ``folder``, with all that is written beside them."""
    for written in ("table.md", "plot.svg", "plot.png"):
        assert (folder / written).stat().st_size > 100
    results: dict[str, Any] = json.loads((folder / "results.json").read_text())
    assert results["bench"] == name
    found = [each[-1:] if name in ("cost", "console", "cores") else each for each in (before, there())]
    if name in ("inbox", "order", "projections"):
        found = [[builds.SOURCE]]
    assert results["settings"]["builds"] in found  # it may have been made meanwhile
    assert results["about"]["machine"]["cores"] >= 1
    return results


def test_the_upstream_answers_with_as_much_as_is_said() -> None:
    assert len(BODY) == 300
    json.loads(BODY)


def test_the_gateway_bench_measures_every_cell_and_checks_the_answers(tmp_path: Path) -> None:
    results = bench("gateway", tmp_path)
    left_out = {OURS[build] for build in builds.BUILDS if build not in results["settings"]["builds"]}
    cells = {(sample["server"], sample["mode"], sample["connections"]) for sample in results["samples"]}
    assert cells == {(name, mode, CONNECTIONS[0]) for name, mode in CELLS if name not in left_out}
    for sample in results["samples"]:
        assert sample["requests"] > 0
        assert sample["errors"] <= 0.001 * sample["requests"]
        assert 0 < sample["p50_ms"] <= sample["p99_ms"] <= sample["max_ms"]
        assert 0 < sample["cpu_us"]["server"] < 1e5
        assert (
            sample["arrivals"] == 0
            if sample["mode"] == "replay"
            else sample["arrivals"] >= sample["requests"] - sample["errors"]
        )
    assert set(results["checks"]) == {"nginx + Lua", *(OURS[build] for build in results["settings"]["builds"])}
    for outcomes in results["checks"].values():
        assert outcomes == results["checks"]["oncegate"]
    assert results["checks"]["oncegate"]["concurrent request"] == "409, 0 arrivals"


def test_the_middleware_bench_measures_every_cell_and_tells_what_the_others_answer(tmp_path: Path) -> None:
    results = bench("middleware", tmp_path)
    there = results["settings"]["builds"]
    variants = [each for each in VARIANTS if not each.frozen and (builds.COMPILED in there or not each.compiled)]
    cells = {(sample["server"], sample["mode"]) for sample in results["samples"]}
    assert cells == {(variant.name, mode) for variant in variants for mode in variant.modes}
    ours = {variant.name for variant in variants if variant.ours}
    for sample in results["samples"]:
        assert sample["requests"] > 0
        assert 0 < sample["p50_ms"] <= sample["p99_ms"]
        if (sample["server"], sample["mode"]) == ("alone", "replay"):
            assert sample["executed"] >= sample["requests"]
        if sample["server"] in ours and sample["mode"] == "replay":
            assert sample["executed"] == 0
        if sample["server"].startswith("alone"):
            assert "turns" not in sample
        else:
            assert set(sample["turns"]) == {"server", "alone"}
            assert min(sample["turns"].values()) > 0
    checks = results["checks"]
    assert checks["alone"]["replay"] == "executed again"
    assert checks["oncegate"]["concurrent"] == "409 at once"
    assert ours <= set(checks)
    for name in ours:
        assert checks[name] == checks["oncegate"]
    assert set(checks["idemkit"]) == set(checks["asgi-idempotency-header"]) == set(checks["oncegate"])


def test_the_duplicates_bench_sees_one_arrival_and_an_answer_for_everybody(tmp_path: Path) -> None:
    """As it is typed: the script brings what is needed, and the command is told."""
    before = there()
    command = ["scripts/bench", "duplicates", "--quick", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    results = whole("duplicates", tmp_path, before)
    assert results["about"]["command"] == "scripts/bench duplicates --quick"
    storms = {(sample["build"], sample["size"]) for sample in results["samples"]}
    assert storms == set(product(results["settings"]["builds"], (10, 100)))
    for sample in results["samples"]:
        assert sample["arrivals"] == 1
        assert sample["answered"] + sample["refused"] == sample["size"]
        assert not (sample["wait"] and sample["refused"])
        assert sample["seconds"] >= UPSTREAM_SECONDS


def test_the_inbox_bench_measures_every_handler_and_the_bytes_of_a_marker(tmp_path: Path) -> None:
    results = bench("inbox", tmp_path)
    assert {sample["handler"] for sample in results["samples"]} - {"cleanup"} == set(inbox.HANDLERS)
    for sample in results["samples"]:
        assert min(value for name, value in sample.items() if name not in ("handler", "round")) > 0
    assert 100 < results["checks"]["bytes_per_marker"] < 1000
    assert {each for _, ours, theirs, _ in inbox.RATIOS for each in (ours, theirs)} <= set(inbox.HANDLERS)


def test_the_projections_bench_measures_every_way(tmp_path: Path) -> None:
    results = bench("projections", tmp_path)
    found = {(sample["database"], sample["way"]) for sample in results["samples"] if "way" in sample}
    assert found == set(product(projections.DATABASES, projections.WAYS))
    assert {sample["guard"] for sample in results["samples"] if "guard" in sample} == set(projections.GUARDS)
    assert results["checks"]["lost"]["a position per stream"] == 0


def test_the_cores_bench_measures_a_worker_workers_and_masters(tmp_path: Path) -> None:
    results = bench("cores", tmp_path)
    found = {name: [each for each in results["samples"] if each["part"] == name] for name in cores.PARTS}
    for sample in found["commands"]:
        assert sample["commands"] > 0
        assert 2 < sample["issued"]["evalsha"] < 5  # those in flight at either end count at one of both
    assert {(each["server"], each["mode"]) for each in found["workers"]} == {
        ("ours", "none"), ("ours", "first"), (PLAIN, "none"), (LUA, "first"),
    }  # fmt: skip
    for sample in found["workers"]:
        assert len(sample["shares"]) == sample["workers"] == 2
        assert abs(sum(sample["shares"]) - 1) < 0.001
    for sample in found["cluster"]:
        assert len(sample["shares"]) == (3 if sample["on"] == cluster.THREE else 1)
        assert sample["sent"] >= (2 if sample["mode"] == "first" else 1)


def test_the_order_bench_measures_every_handler(tmp_path: Path) -> None:
    results = bench("order", tmp_path)
    assert {sample["handler"] for sample in results["samples"]} == set(order.HANDLERS)
    assert {each for _, ours, theirs, _ in order.RATIOS for each in (ours, theirs)} <= set(order.HANDLERS)


def test_the_cost_bench_measures_each_of_its_parts(tmp_path: Path) -> None:
    results = bench("cost", tmp_path)
    assert {kind: counts["sent"] for kind, counts in results["checks"]["commands"].items()} == {
        "first": 2,
        "replay": 1,
        "none": 0,
    }
    parts = {sample["part"] for sample in results["samples"]}
    assert parts == {"connections", "size", "workers", "soak"}
    for sample in results["samples"]:
        if sample["part"] == "soak":
            assert 300 < sample["record_bytes"] < 3000
            # Of few records, what Redis holds for its clients, and gives up meanwhile, counts for something.
            assert 0.5 * sample["record_bytes"] < sample["redis_bytes_per_record"] < 3000
            assert sample["gateway_rss_bytes"] > 1e7
        else:
            assert sample["errors"] <= 0.001 * sample["requests"]
            assert 0 < sample["p50_ms"] <= sample["p99_ms"]
    assert results["samples"][-1]["records"] >= results["settings"]["records"]


def test_each_page_of_the_console_is_loaded_and_clients_are_measured_beside_the_open_ones(tmp_path: Path) -> None:
    results = bench("console", tmp_path)
    pages = [sample for sample in results["samples"] if sample["part"] == "page"]
    assert {"Overview", "Records", "Unknown", "Commands", "Dead letter", "Record"} < {each["page"] for each in pages}
    for sample in pages:
        assert sample["bytes"] > 500
        assert 0 < sample["first_byte_ms"] < 60_000
        assert 0 < sample["hold_ms"] < 60_000
    clients = {sample["page"]: sample for sample in results["samples"] if sample["part"] == "clients"}
    assert set(clients) == {"", *console.OPEN}
    for name, sample in clients.items():
        assert sample["errors"] <= 0.001 * sample["requests"]
        assert (sample["loads"] > 0) is bool(name)
    assert 0 < results["checks"]["wheel"]["without"] < results["checks"]["wheel"]["whole"]


def test_the_instructions_of_each_kind_of_request_are_counted(tmp_path: Path) -> None:
    arguments = ["instructions", "--quick", "--build", "source", "--door", "gateway"]
    invoke(*arguments, "--out", str(tmp_path))
    samples = json.loads((tmp_path / "results.json").read_text())["samples"]
    counted = {(sample["checkout"], sample["door"], sample["mode"]): sample["instructions"] for sample in samples}
    assert set(counted) == {("this", "gateway", mode) for mode in instructions.MODES["gateway"]}
    assert 0 < counted["this", "gateway", "GET that passes"] < counted["this", "gateway", "first request"]
    assert "ratio" not in (tmp_path / "table.md").read_text()


def test_each_environment_is_counted_and_measured_by_the_python_that_it_has(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "this").symlink_to(ROOT / ".venv")
    invoke("pythons", "--environments", str(tmp_path / "there"), "--quick", "--out", str(tmp_path))
    results = json.loads((tmp_path / "results.json").read_text())
    (environment,) = results["settings"]["environments"]
    assert environment["name"] == "this"
    assert environment["interpreter"] == f"CPython {platform.python_version()}"
    assert (environment["build"], environment["free_threaded"]) == (builds.SOURCE, False)
    assert results["checks"]["this"]["concurrent request"] == "409, 0 arrivals"
    for mode in pythons.MODES.values():
        counted, timed = (sample for sample in results["samples"] if sample["mode"] == mode)
        assert counted["instructions"] > 10_000
        assert timed["requests"] > 0
        assert timed["cpu_us"]["server"] > 0


def test_an_environment_without_oncegate_ends_the_bench_with_its_name(tmp_path: Path) -> None:
    assert "no environment in" in str(CliRunner().invoke(main, ["pythons", "--environments", str(tmp_path)]).exception)
    (tmp_path / "bare" / "bin").mkdir(parents=True)
    (tmp_path / "bare" / "bin" / "python").symlink_to(sys.executable)
    done = CliRunner().invoke(main, ["pythons", "--environments", str(tmp_path)])
    assert "bare/bin/oncegate does not run: is oncegate installed there?" in str(done.exception)


def test_the_instructions_of_another_checkout_are_counted_in_its_folder_and_told_beside_these(tmp_path: Path) -> None:
    """A whole run of both takes twenty seconds of a processor more."""
    assert [(each.label, each.root) for each in instructions.checkouts(tmp_path, builds.SOURCE, quick=True)] == [
        ("this", ROOT),
        ("against", tmp_path),
    ]
    samples = [
        {
            "checkout": checkout,
            "build": builds.SOURCE,
            "door": "gateway",
            "mode": mode,
            "round": 0,
            "instructions": each,
        }
        for checkout, each in (("this", 200_000), ("against", 160_000))
        for mode in instructions.MODES["gateway"]
    ]
    settings = {"builds": [builds.SOURCE], "doors": ["gateway"]}
    (table,) = instructions.tables(Results("instructions", settings, samples=samples))
    assert table.head[-1] == "ratio"
    assert {row[-1] for row in table.rows} == {"1.250"}


def test_beside_an_attacker_all_honest_requests_are_answered(tmp_path: Path) -> None:
    invoke("attack", "--quick", "--build", "source", "--out", str(tmp_path))
    alone, beside = json.loads((tmp_path / "results.json").read_text())["samples"]
    assert alone["errors"] == beside["errors"] == 0
    assert alone["requests"] > 0
    assert beside["requests"] > 0
    assert not alone["attacks"]
    assert set(beside["attacks"]) == set(attack.kinds())
    assert "p99 beside / alone" in (tmp_path / "table.md").read_text()
