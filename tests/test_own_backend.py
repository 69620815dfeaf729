"""A cache that somebody else writes: the page's passes the suite, and one with a fault in it doesn't.

Rules of docs/contract.md: R12.13.
"""

import importlib
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest
from _pytest.assertion.rewrite import AssertionRewritingHook

from oncegate import testing
from testing import pages, template

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/caches.md"
PRELOADED = ("pytest", "_pytest.assertion.rewrite", "sqlite3", "oncegate.backend", "oncegate.cache.memory.store")
"""What neither asserts anything, nor has to be seen by pytest while it is imported."""
CONFIGURATION = (
    "[pytest]\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\naddopts = --strict-markers\n"
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the page's files: a stranger's project."""
    for kind, block in pages.BLOCK.findall(PAGE.read_text("utf-8")):
        named = pages.FILE.match(block)
        assert kind == "python"
        assert named
        (tmp_path / named[1]).write_text(block, "utf-8")
    (tmp_path / "pytest.ini").write_text(CONFIGURATION)
    return tmp_path


def suite(project: Path, only: str = "") -> tuple[int, set[str], str]:
    """How many tests of the suite passed, which failed, and what was printed. ``only``: as in ``pytest -k``."""
    done = template.run(
        # Its own folder of temporary files: in the one that all pytests share, two that tidy up at once meet, and one fails.
        *("-m", "pytest", f"--basetemp={project}.tmp", "-q"),
        *("-p", "pytest_asyncio.plugin", "--tb=line", "-rf", "-k", only, "."),
        preloaded=PRELOADED,
        cwd=project,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    passed = re.search(r"(\d+) passed", done.stdout)
    failed = set(re.findall(r"^FAILED \S*::(test_\w+)", done.stdout, re.M))
    return int(passed[1]) if passed else 0, failed, done.stdout + done.stderr


def test_the_page_s_cache_passes_the_suite(project: Path) -> None:
    passed, failed, printed = suite(project)
    assert not failed, printed
    assert passed >= 130, printed


UNHARMED = "test_an_attempt_cannot_end_in_a_state_that_is_no_outcome"
"""A test that passes with each of the faults, beside the one that is to fail: what has a fault runs."""
FAULTS = {
    "claims by reading first": (
        "            held, left_ms = row.record, row.left_ms\n",
        "            held, left_ms = row.record, row.left_ms\n            held = None\n",
        "test_of_many_claims_at_once_exactly_one_is_won",
    ),
    "lets anybody complete": (
        "if held is not None and row.owned_by(outcome.token) is None:",
        "if False:",
        "test_a_stranger_neither_completes_nor_renews_nor_releases",
    ),
    "never lapses": (
        "backend.decode(found[0], self.left_ms, traced=True)",
        "backend.decode(found[0], 10**12, traced=True)",
        "test_a_lease_lapses_exactly_at_the_records_own_retention",
    ),
    "forgets to expire": (
        "WHERE key = ? AND ends_ms > ?",
        "WHERE key = ? AND ? > 0",
        "test_every_state_ends_with_its_time",
    ),
    "drops what a released attempt had found": (
        "if ours is not None and ours.found is State.ABSENT:",
        "if ours is not None:",
        "test_a_release_restores_what_the_attempt_found",
    ),
    "does not compare fingerprints": (
        " or held.fingerprint != request.fingerprint)",
        ")",
        "test_another_fingerprint_takes_nothing_over",
    ),
    "takes over what is in flight": (
        "if held is not None and (held.state not in request.takeover",
        "if held is not None and (held.state not in request.takeover | {State.IN_FLIGHT}",
        "test_a_live_or_succeeded_record_is_never_taken_over",
    ),
    "prolongs by the lease alone": (
        "row.prolong(lease_ms + record.retention_ms)",
        "row.prolong(lease_ms)",
        "test_an_owner_renews_in_flight_or_lapsed",
    ),
    "counts no attempts": (
        "request.next_attempt(held, left_ms)",
        "replace(request.next_attempt(held, left_ms), attempt=1)",
        "test_attempts_are_numbered_across_takeovers_and_releases",
    ),
    "takes its own claim, asked again, for another's": (
        "if held is not None and held.state is State.IN_FLIGHT and held.token == request.token:",
        "if False:",
        "test_a_claim_that_finds_its_own_token_is_its_own",
    ),
    "resolves what is known": (
        "if held.state not in (State.UNKNOWN, State.IN_FLIGHT):",
        "if False:",
        "test_a_known_outcome_is_never_touched",
    ),
    "ends a scan too soon": (
        'keys[-1] if len(keys) == max(1, limit) else ""',
        '""',
        "test_a_scan_lists_a_whole_namespace_in_steps",
    ),
    "scans other namespaces": (
        "substr(key, 1, ?) = ?",
        "? + 1 AND key LIKE ? || '%'",
        "test_a_scan_takes_no_namespace_for_a_pattern",
    ),
    "keeps no mark of a submission": (
        "row.put(outcome, ttl_ms)",
        "outcome.submission = False\n            row.put(outcome, ttl_ms)",
        "test_the_outcome_of_a_submission_is_marked",
    ),
    "checks no arguments": (
        "        backend.check_takeover(request.takeover)\n",
        "",
        "test_leave_to_take_over_what_the_table_does_not_allow_is_refused",
    ),
}


@pytest.mark.parametrize(("right", "wrong", "test"), FAULTS.values(), ids=FAULTS.keys())
def test_a_cache_with_a_fault_does_not_pass(project: Path, right: str, wrong: str, test: str) -> None:
    file = project / "sqlite_cache.py"
    code = file.read_text("utf-8")
    assert code.count(right) == 1
    file.write_text(code.replace(right, wrong), "utf-8")
    passed, failed, printed = suite(project, f"{test} or {UNHARMED}")
    assert test in failed, printed
    assert passed > 0, printed


CLAIMS = """\
import asyncio, os, sys
from oncegate.backend import ClaimRequest
from sqlite_cache import SqliteCache

async def main():
    cache = SqliteCache("records")
    call = {"fingerprint": bytes(16), "lease_ms": 60_000, "retention_ms": 60_000}
    won = [(await cache.claim(f"n:{n}:s", ClaimRequest(os.urandom(16), **call))).won for n in range(50)]
    print(sum(won))
    await cache.close()

asyncio.run(main())
"""


def test_the_page_s_cache_is_atomic_over_processes(project: Path) -> None:
    workers = [
        subprocess.Popen([sys.executable, "-c", CLAIMS], cwd=project, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    assert sum(int(each.communicate(timeout=100)[0]) for each in workers) == 50


def test_the_page_s_cache_does_for_decorated_functions(project: Path) -> None:
    code = """\
import asyncio
from oncegate import idempotent
from sqlite_cache import SqliteCache

cache = SqliteCache("records")

@idempotent(key=lambda order: order, cache=cache)
def charge(order: str) -> str:
    return f"charged {order}"

@idempotent(key=lambda order: order, cache=cache)
async def ship(order: str) -> str:
    return f"shipped {order}"

print([charge("a"), charge("a"), *[asyncio.run(ship("a")) for _ in range(2)]])
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=project, capture_output=True, text=True, timeout=100)
    assert (done.stdout, done.stderr) == ("['charged a', 'charged a', 'shipped a', 'shipped a']\n", "")


def test_the_core_does_not_need_pytest() -> None:
    code = "import sys; sys.modules['pytest'] = None; import oncegate.backend, oncegate.app.cli.main"
    subprocess.run([sys.executable, "-c", code], check=True)
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.modules['pytest'] = None; import oncegate.testing"],
        capture_output=True,
        text=True,
    )
    assert done.stderr.splitlines()[-1] == "ImportError: oncegate.testing needs pytest: pip install 'oncegate[testing]'"


def test_an_assertion_of_the_suite_tells_what_it_has_compared() -> None:
    parts = [part for part in pkgutil.iter_modules(testing.__path__) if not part.ispkg]
    loaders = {part.name: type(importlib.import_module(f"{testing.__name__}.{part.name}").__loader__) for part in parts}
    assert loaders
    assert set(loaders.values()) == {AssertionRewritingHook}, loaders
