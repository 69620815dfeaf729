"""The Locust users: all is well against a gateway, and they notice where it isn't."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from oncegate.app.demo.upstream import Payments, PaymentsServer
from testing.gateway import Gateway

pytestmark = pytest.mark.timeout(300)  # a slow machine takes several runs

KINDS = {"first request", "retry", "concurrent duplicate", "mismatch", "other caller, same key", "no key"}


def locust(folder: Path, host: str) -> tuple[int, dict[str, tuple[int, int]], str]:
    """The exit code; of each kind of request how many were sent and how many failed; the report."""
    done = subprocess.run(
        [sys.executable, "-m", "locust", "-f", "loadtests/locustfile.py", "--host", host, "--headless", "--users", "10",
         "--spawn-rate", "10", "--run-time", "2s", "--html", str(folder / "report.html"), "--json-file", str(folder / "counts")],
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    found = json.loads((folder / "counts.json").read_text())
    counts = {row["name"]: (row["num_requests"], row["num_failures"]) for row in found}
    return done.returncode, counts, (folder / "report.html").read_text()


def until_seen(
    kinds: set[str], folder: Path, host: str, *, failing: str = ""
) -> tuple[int, dict[str, tuple[int, int]], str]:
    """The same of as many runs as it takes to see all ``kinds``, and those that are ``failing`` fail, at least once.

    Users choose at random, and a slow machine sees few.
    """
    total: dict[str, tuple[int, int]] = {}
    while True:
        code, counts, report = locust(folder, host)
        for kind, (sent, failed) in counts.items():
            before = total.get(kind, (0, 0))
            total[kind] = before[0] + sent, before[1] + failed
        if all(kind in total for kind in kinds) and (not failing or total.get(failing, (0, 0))[1]):
            return code, total, report


def test_users_of_a_gateway_get_what_they_should(tmp_path: Path) -> None:
    with PaymentsServer(Payments(lambda line: None)) as upstream:
        gateway = Gateway(tmp_path / "log", upstream.url).ready()
        try:
            code, counts, report = until_seen(KINDS, tmp_path, gateway.url)
        finally:
            gateway.end()
    assert code == 0
    assert {kind for kind, (_, failed) in counts.items() if failed} == set()
    assert "concurrent duplicate" in report


def test_users_notice_where_nothing_is_enforced(tmp_path: Path) -> None:
    """The bare upstream executes everything and answers 201 each time: to a client that only looks at statuses, all is well."""
    with PaymentsServer(Payments(lambda line: None)) as upstream:
        code, counts, _ = until_seen(
            {"first request", "no key"}, tmp_path, upstream.url, failing="concurrent duplicate"
        )
    assert code == 1
    for kind in ("first request", "no key"):
        sent, failed = counts[kind]
        assert failed == sent > 0
    assert counts["concurrent duplicate"][1] > 0


def test_users_notice_a_gateway_whose_replays_are_wrong(tmp_path: Path) -> None:
    """One that forgets its records: what it says of itself is right, and each retry is executed again."""
    with PaymentsServer(Payments(lambda line: None)) as upstream:
        gateway = Gateway(tmp_path / "log", upstream.url, idempotency={"ttl": 1}).ready()
        try:
            code, counts, _ = until_seen({"first request"}, tmp_path, gateway.url, failing="retry")
        finally:
            gateway.end()
    assert code == 1
    assert counts["retry"][1] > 0
    assert counts["first request"][1] == 0
