"""`scripts/bench budget` counts each function for itself, and every function belongs to one stage."""

import os
import subprocess
import sys
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from loadtests import budget, functions, instructions, pages, processes, stages
from loadtests.processes import BenchError
from loadtests.report import Results

KEPT = Results.read(pages.KEPT / "budget.json")
COUNTED = """
def light(n):
    total = 0
    for each in range(n):
        total += each
    return total

def steps(n):
    for each in range(n):
        yield each

def failing():
    raise KeyError("as ever")

def heavy(n):
    try:
        failing()
    except KeyError as error:
        assert error.args == ("as ever",)
    return light(n) + sum(steps(9)) + sum(each * each for each in range(10 * n))

print("ready", flush=True)
input()
print(heavy(20_000), flush=True)
input()
"""


def test_every_function_that_was_met_has_one_stage() -> None:
    met = {function for sample in KEPT.samples for function in sample["functions"]}
    assert len(met) > 200
    assert {stages.of(function) for function in met} == set(stages.ORDER)
    entries = Counter(entry for each in stages.STAGES.values() for entry in each)
    assert [entry for entry, times in entries.items() if times > 1] == []


def test_every_function_of_a_compiled_module_has_a_stage() -> None:
    compiled = [module for module in functions.defined() if _is_compiled(module)]
    assert len(compiled) > 50
    assert [stages.of(f"{module}:{name}") for module in compiled for name in functions.defined()[module]]


def _is_compiled(module: str) -> bool:
    return "\n# Compiled" in (functions.PACKAGE / module.replace(".", "/")).with_suffix(".py").read_text("utf-8")


def test_what_is_renamed_is_found() -> None:
    assert stages.missing() == []
    renamed = ["app.server.parser:InboundParser.fed", "app.server.parsers", "app.servers."]
    assert stages.missing(renamed) == renamed
    with pytest.raises(BenchError, match=r"app\.news\.new:new has no stage"):
        stages.of("app.news.new:new")


def test_the_narrowest_entry_counts() -> None:
    assert stages.of("app.http1:RequestHead.framed") == "head"
    assert stages.of("app.http1:RequestWriter._lines") == "head to the upstream"
    assert stages.of("pydantic") == stages.OTHER
    assert stages.of(functions.BENEATH) == stages.FLOOR


@pytest.mark.parametrize(
    ("symbol", "function"),
    [
        ("CPyDef_server___connection___InboundConnection___close", "app.server.connection:InboundConnection.close"),
        ("CPyDef_http1_____number", "app.http1:_number"),
        ("CPyDef_passing___Passing_clear", "app.gateway.passing:Passing"),
        ("CPyDef_enter_____mypyc__Bypass_setup", "middleware.http.enter:Bypass"),
        ("CPyDef_forward_____call___3_Forwarder_gen___send", "app.upstream.forward:Forwarder.__call__"),
        ("CPyDef_columns___Histogram____turn_to.cold", "app.telemetry.columns:Histogram._turn_to"),
        ("CPyDef_calls___ClaimCall___read__CallbackCall_glue", "cache.redis.calls:ClaimCall.read"),
    ],
)  # fmt: skip
def test_compiled_functions_are_spelled_as_their_sources(symbol: str, function: str) -> None:
    assert functions.of_compiled(symbol) == function


def test_a_compiled_function_of_no_source_is_an_error() -> None:
    with pytest.raises(BenchError, match="CPyDef_nowhere___f"):
        functions.of_compiled("CPyDef_nowhere___f")


def test_all_is_skipped_but_what_is_counted() -> None:
    patterns = [option.removeprefix("--fn-skip=") for option in functions.skipped()]

    def skips(name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in patterns)

    assert not any(map(skips, ("CPyDef_http1_____number", "counted_frame_007")))
    assert all(
        map(skips, ("PyDict_New", "CPyDict_GetItem", "_PyEval_EvalFrameDefault", "malloc", "counted_out", "CPyPy_f"))
    )


def test_each_function_of_python_is_counted_for_itself(tmp_path: Path) -> None:
    valgrind = processes.tool("valgrind")
    functions.built(tmp_path)
    script = tmp_path / "oncegate" / "app" / "counted.py"
    script.parent.mkdir(parents=True)
    script.write_text(COUNTED)
    out, listed = tmp_path / "callgrind.out", tmp_path / "functions"
    options = ["--tool=callgrind", "--instr-atstart=no", "--dump-line=no", f"--callgrind-out-file={out}"]
    with subprocess.Popen(
        [f"{valgrind}/valgrind", *options, *functions.skipped(), sys.executable, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "BENCH_FRAMES": str(listed), "PYTHONHASHSEED": "0"},
    ) as counted:
        assert counted.stdin is not None
        assert counted.stdout is not None
        assert counted.stdout.readline() == "ready\n"
        instructions.control(valgrind, "-i", "on", counted)
        counted.stdin.write("go\n")
        counted.stdin.flush()
        printed = counted.stdout.readline()
        dump = budget.dumped(valgrind, counted, out)
        counted.communicate("end\n", timeout=instructions.READY_WITHIN)
    assert int(printed) == sum(range(20_000)) + sum(range(9)) + sum(each * each for each in range(200_000))
    costs = functions.costs(dump)
    total = next(line for line in dump.read_text().splitlines() if line.startswith("totals: "))
    assert costs.total() == int(total.split()[1])
    named = functions.named(costs, listed)
    comprehension = "app.counted:heavy.<locals>.<genexpr>"
    assert {"app.counted:light", "app.counted:steps", "app.counted:failing", comprehension} <= set(named)
    assert named[comprehension] > 5 * named["app.counted:light"] > 100 * named["app.counted:steps"] > 0


def test_stages_of_a_request_make_its_whole() -> None:
    for sample in KEPT.samples:
        if sample["build"] != budget.FLOOR:
            parts = budget.by_stage(sample)
            assert sum(parts.values()) == pytest.approx(sample["instructions"])
            added = sum(sample["functions"].values()) / sample["instructions"]
            assert 0.97 < added < 1.25, "what was counted by function is another request"


def test_a_gateway_s_functions_are_told_apart() -> None:
    for sample in KEPT.samples:
        if sample["door"] == "gateway":
            parts = budget.by_stage(sample)
            assert parts[stages.OTHER] < 0.1 * sample["instructions"]
            assert parts["head"] > 0.02 * sample["instructions"]  # a submission has the least, 2.8%


def test_more_functions_than_numbers_are_an_error(tmp_path: Path) -> None:
    listed = tmp_path / "functions"
    listed.write_text("1 app.counted:light\n")
    assert functions.named(Counter({"counted_frame_0001": 7, "uv_run": 2}), listed) == {
        "app.counted:light": 7,
        functions.BENEATH: 2,
    }
    with pytest.raises(BenchError, match="more functions than"):
        functions.named(Counter({"counted_frame_0000": 1}), listed)
