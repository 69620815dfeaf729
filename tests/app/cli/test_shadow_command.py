"""``oncegate shadow report``: what it counts, what it says of lines that are none, and that it holds little.

Rules of docs/contract.md: R11.30.
"""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from oncegate.app.operators.shadow_report import MOST, ShadowReport
from testing.command_line import invoke

ALICE, BOB = "a" * 20, "b" * 20


def line(decision: str = "first", status: int = 201, upstream: int = 201, **more: Any) -> str:
    """A line of a gateway's log."""
    members = {
        "time": "2026-11-25T21:00:00+0000",
        "level": "INFO",
        "logger": "oncegate.shadow",
        "message": f"{decision} -> {status}, observed",
        "mode": "shadow",
        "decision": decision,
        "status": status,
        "upstream_status": upstream,
        "attempt": 1,
        "record": f"{'k' * 20}:{ALICE}",
        "route": "/payments",
        "method": "POST",
        "seconds": 0.001,
    }
    return json.dumps(members | more)


LOG = [
    line(),
    line(
        "replayed", first_status=201, differs=["headers"], headers=["x-request-id"], time="2026-11-25T23:30:00.250+0200"
    ),
    line(
        "replayed", 201, 409, first_status=201, differs=["status", "body"], headers=[], time="2026-11-25T20:00:00+0000"
    ),
    line("in-flight", 409, 500),
    line("in-flight", 409, 0),
    line("key-reused", 422, 201, record=f"{'l' * 20}:{BOB}"),
    line("key-reused", 422, 201, record=f"{'m' * 20}:{BOB}"),
    line("key-missing", 400, 201, record="", attempt=0),
    line("bypass", 201, 201, record="", attempt=0, route="*"),
    line("bypass", 201, 201, attempt=0, route="*"),
    line("upstream-failed", 502, 502),
    json.dumps({"time": "now", "logger": "oncegate.serve", "message": "listening", "decision": "none of its business"}),
]


def report(tmp_path: Path, *texts: str, stdin: str = "", options: tuple[str, ...] = ("--json",)) -> Any:
    paths = []
    for number, text in enumerate(texts):
        (path := tmp_path / f"{number}.log").write_text(text)
        paths.append(str(path))
    return invoke("shadow", "report", *options, *paths, stdin=stdin)


def test_it_counts_what_enforcement_would_have_done(tmp_path: Path) -> None:
    done = report(tmp_path, "\n".join(LOG) + "\n")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert (found["observed"], found["skipped_lines"], found["not_told_apart"]) == (11, 0, 0)
    assert (found["from"], found["until"]) == ("2026-11-25T20:00:00+00:00", "2026-11-25T21:30:00.250000+00:00")
    assert {(row["route"], row["method"], row["decision"]): row["count"] for row in found["requests"]} == {
        ("/payments", "POST", "first"): 1,
        ("/payments", "POST", "replayed"): 2,
        ("/payments", "POST", "in-flight"): 2,
        ("/payments", "POST", "key-reused"): 2,
        ("/payments", "POST", "key-missing"): 1,
        ("/payments", "POST", "upstream-failed"): 1,
        ("*", "POST", "bypass"): 2,
    }
    assert found["without_keys"] == [
        {"route": "*", "method": "POST", "count": 1, "of": 2},
        {"route": "/payments", "method": "POST", "count": 1, "of": 9},
    ], "a bypass with a record had a key, and no cache"
    assert {(row["decision"], row["status"], row["upstream_status"]): row["count"] for row in found["refused"]} == {
        ("key-reused", 422, 201): 2,
        ("key-missing", 400, 201): 1,
        ("in-flight", 409, 500): 1,
        ("in-flight", 409, 0): 1,
    }, "what the upstream has failed in is no refusal"
    assert found["reused"] == [{"caller": BOB, "route": "/payments", "count": 2}]
    record = f"{'k' * 20}:{ALICE}"
    assert sorted(found["executed_twice"], key=str) == sorted(
        [
            {
                "route": "/payments",
                "decision": decision,
                "first_status": first,
                "status": status,
                "differs": differs,
                "count": 1,
                "records": [record],
            }
            for decision, first, status, differs in [
                ("in-flight", None, 500, []),
                ("replayed", 201, 201, ["headers"]),
                ("replayed", 201, 409, ["status", "body"]),
            ]
        ],
        key=str,
    ), "one whose client has left before anything came is none that was seen to be executed"
    assert found["differing_headers"] == [{"route": "/payments", "header": "x-request-id", "count": 1}]


def test_several_logs_are_one_and_so_is_standard_input(tmp_path: Path) -> None:
    halves = "\n".join(LOG[:5]) + "\n", "\n".join(LOG[5:]) + "\n"
    whole = json.loads(report(tmp_path, "".join(halves)).stdout)
    assert json.loads(report(tmp_path, *halves).stdout) == whole
    assert json.loads(report(tmp_path, stdin="".join(halves)).stdout) == whole
    prefixed = "".join(f"gateway-1  | {each}\n" for each in LOG)
    assert json.loads(report(tmp_path, stdin=prefixed).stdout) == whole


def test_people_get_tables(tmp_path: Path) -> None:
    done = report(tmp_path, "\n".join(LOG), options=())
    assert done.returncode == 0
    for shown in (
        "11 requests were observed, 2026-11-25 20:00:00Z to 2026-11-25 21:30:00Z.",
        "1 of 9",
        "422 key-reused",
        BOB,
        "201, 409",
        "status, body",
        "x-request-id",
    ):
        assert shown in done.stdout


def test_lines_that_are_no_json_are_named(tmp_path: Path) -> None:
    done = report(tmp_path, f"{LOG[0]}\n21:00:00 INFO    a line for people\n{LOG[1]}\n[1, 2]\n", "Traceback\n")
    assert done.returncode == 0
    assert done.stderr == f"oncegate: 3 of 5 lines are no JSON and were skipped, the first at {tmp_path}/0.log:2\n"
    assert json.loads(done.stdout)["skipped_lines"] == 3


@pytest.mark.parametrize("member", ["status", "upstream_status", "record", "route", "method"])
@pytest.mark.parametrize("value", [None, [], {}])
def test_a_line_that_is_damaged_is_named_and_nothing_is_counted(tmp_path: Path, member: str, value: Any) -> None:
    done = report(tmp_path, f"{LOG[0]}\n{line(**{member: value})}\n")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"oncegate: {tmp_path}/0.log:2: a line of oncegate.shadow has no {member} that could be read: "
        "was it written by another version of oncegate?\n"
    )


@pytest.mark.parametrize(
    "text", ["", "\n", f"{LOG[-1]}\n", "no json\n", '{"logger": "oncegate.shadow"}\n', "\x00\xff{\n"]
)
def test_a_log_without_anything_observed_says_what_to_look_for(tmp_path: Path, text: str) -> None:
    done = report(tmp_path, text)
    assert (done.returncode, done.stdout) == (1, "")
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        f"oncegate: nothing was observed in {text.count(chr(10))} lines: has the gateway shadow = true"
    )


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = invoke("shadow", "report", str(tmp_path / "none.log"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "none.log" in done.stderr


def test_a_line_without_an_end_is_not_held(tmp_path: Path) -> None:
    """Nor is its rest taken for lines of its own."""
    done = report(tmp_path, "x" * 3_000_000 + LOG[0] + "\n" + LOG[1] + "\n")
    found = json.loads(done.stdout)
    assert (found["observed"], found["skipped_lines"]) == (1, 1)


def test_many_callers_are_counted_in_bounded_memory() -> None:
    made = ShadowReport()
    lines = [line("key-reused", 422, 201, record=f"{'k' * 20}:{number:020d}").encode() for number in range(3 * MOST)]
    for each in lines[: MOST + 1000]:
        made.add(each)
    tracemalloc.start()
    for each in lines[MOST + 1000 :]:
        made.add(each)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 500_000
    found = made.document()
    assert found["observed"] == 3 * MOST
    assert len(found["reused"]) == MOST
    assert found["not_told_apart"] == 2 * MOST
    assert found["requests"] == [{"route": "/payments", "method": "POST", "decision": "key-reused", "count": 3 * MOST}]
