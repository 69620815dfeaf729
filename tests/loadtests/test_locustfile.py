"""The Locust users: all is well against a gateway, and they notice where it isn't."""

import json
import os
import subprocess
import sys
from pathlib import Path

from oncegate.app.demo.upstream import Payments, serving
from testing.gateway import Gateway

KINDS = ("first request", "retry", "concurrent duplicate", "mismatch", "other caller, same key", "no key")


def locust(
    folder: Path, host: str, *seen: str, failing: tuple[str, ...] = ()
) -> tuple[int, dict[str, tuple[int, int]], str]:
    """The exit code; of each kind of request how many were sent and how many failed; the report.

    Users choose at random: they send until all kinds of ``seen`` were sent, and those that are ``failing`` have failed.
    """
    done = subprocess.run(
        [sys.executable, "-m", "locust", "-f", "loadtests/locustfile.py,tests/loadtests/ending.py", "--host", host, "--headless",
         "--users", "10", "--spawn-rate", "10", "--run-time", "100s", "--html", str(folder / "report.html"),
         "--json-file", str(folder / "counts")],
        capture_output=True, text=True, env=os.environ | {"SEEN": ";".join(seen), "FAILING": ";".join(failing)},
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    found = json.loads((folder / "counts.json").read_text())
    counts = {row["name"]: (row["num_requests"], row["num_failures"]) for row in found}
    return done.returncode, counts, (folder / "report.html").read_text()


def test_users_of_a_gateway_get_what_they_should(tmp_path: Path) -> None:
    with serving(Payments(lambda line: None)) as upstream:
        gateway = Gateway(tmp_path / "log", upstream).ready()
        try:
            code, counts, report = locust(tmp_path, gateway.url, *KINDS)
        finally:
            gateway.end()
    assert code == 0
    assert {kind for kind, (_, failed) in counts.items() if failed} == set()
    assert "concurrent duplicate" in report


def test_users_notice_where_nothing_is_enforced(tmp_path: Path) -> None:
    """The bare upstream executes everything and answers 201 each time: to a client that only looks at statuses, all is well."""
    with serving(Payments(lambda line: None)) as upstream:
        code, counts, _ = locust(tmp_path, upstream, "first request", "no key", failing=("concurrent duplicate",))
    assert code == 1
    for kind in ("first request", "no key"):
        sent, failed = counts[kind]
        assert failed == sent > 0
    assert counts["concurrent duplicate"][1] > 0


def test_users_notice_a_gateway_whose_replays_are_wrong(tmp_path: Path) -> None:
    """One that forgets its records: what it says of itself is right, and each retry is executed again."""
    with serving(Payments(lambda line: None)) as upstream:
        gateway = Gateway(tmp_path / "log", upstream, idempotency={"ttl": 1}).ready()
        try:
            code, counts, _ = locust(tmp_path, gateway.url, "first request", failing=("retry",))
        finally:
            gateway.end()
    assert code == 1
    assert counts["retry"][1] > 0
    assert counts["first request"][1] == 0
