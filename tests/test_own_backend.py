"""A cache that somebody else writes: the page's passes the suite, and one with a fault in it doesn't.

Rules of docs/contract.md: R12.13.
"""

import ast
import importlib
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Callable
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
STORE_FAULTS = {
    "claims by reading first": (
        "return self._move(key, lambda held: backend.claim(held, request))",
        "return self._move(key, lambda _: backend.claim(None, request))",
        "test_of_many_claims_at_once_exactly_one_is_won",
    ),
    "never lapses": (
        "backend.decode(found[0], left_ms, traced=True)",
        "backend.decode(found[0], 10**12, traced=True)",
        "test_a_lease_lapses_exactly_at_the_records_own_retention",
    ),
    "forgets to expire": (
        "WHERE key = ? AND ends_ms > ?",
        "WHERE key = ? AND ? > 0",
        "test_every_state_ends_with_its_time",
    ),
    "loses a record that is to be removed": (
        "if move.ttl_ms == backend.REMOVED:",
        "if move.ttl_ms < 0:",
        "test_a_claim_without_leave_to_take_over_writes_nothing",
    ),
    "renews nothing": (
        "elif move.ttl_ms != backend.UNCHANGED:",
        "elif False:",
        "test_an_owner_renews_in_flight_or_lapsed",
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
        "backend.encode(move.record)",
        "backend.encode(replace(move.record, submission=False))",
        "test_the_outcome_of_a_submission_is_marked",
    ),
    "keeps no trace": (
        "backend.encode(move.record)",
        "backend.encode(replace(move.record, trace=backend.Trace()))",
        "test_the_trace_of_an_attempt_stays_when_its_lease_has_lapsed",
    ),
}
"""What can be wrong in a store that executes the law."""
LAW_FAULTS = {
    "lets anybody complete": (
        "if held is not None and not _is_owner(held.record, outcome.token):",
        "if False:",
        "test_a_stranger_neither_completes_nor_renews_nor_releases",
    ),
    "drops what a released attempt had found": (
        "if check(record.state, Event.RELEASE, record.found) is State.ABSENT:",
        "if True:",
        "test_a_release_restores_what_the_attempt_found",
    ),
    "does not compare fingerprints": (
        "if not takes_over(found, request.takeover, request.fingerprint):",
        "if found.state not in request.takeover:",
        "test_another_fingerprint_takes_nothing_over",
    ),
    "takes over what is in flight": (
        "if not takes_over(found, request.takeover, request.fingerprint):\n        return Move(held)\n"
        "    check(found.state, Event.CLAIM, State.IN_FLIGHT)\n",
        "",
        "test_a_live_or_succeeded_record_is_never_taken_over",
    ),
    "prolongs by the lease alone": (
        "return Move(True, lease_ms + held.record.retention_ms)",
        "return Move(True, lease_ms)",
        "test_an_owner_renews_in_flight_or_lapsed",
    ),
    "counts no attempts": (
        "taken = request.next_attempt(found, held.remaining_ms)",
        "taken = replace(request.next_attempt(found, held.remaining_ms), attempt=1)",
        "test_attempts_are_numbered_across_takeovers_and_releases",
    ),
    "takes its own claim, sent again, for another's": (
        "if found.state is State.IN_FLIGHT and found.token == request.token:",
        "if False:",
        "test_a_claim_that_finds_its_own_token_is_its_own",
    ),
    "resolves what is known": (
        "if not targets(record.state, Event.RESOLVE):",
        "if False:",
        "test_a_known_outcome_is_never_touched",
    ),
    "checks no arguments": (
        "    check_takeover(request.takeover)\n",
        "",
        "test_leave_to_take_over_what_the_table_does_not_allow_is_refused",
    ),
}
"""What can be wrong in a store that decides by a law of its own."""


def fails(project: Path, test: str) -> None:
    passed, failed, printed = suite(project, f"{test} or {UNHARMED}")
    assert test in failed, printed
    assert passed > 0, printed


@pytest.mark.parametrize(("right", "wrong", "test"), STORE_FAULTS.values(), ids=STORE_FAULTS.keys())
def test_a_cache_with_a_fault_does_not_pass(project: Path, right: str, wrong: str, test: str) -> None:
    file = project / "sqlite_cache.py"
    code = file.read_text("utf-8")
    assert code.count(right) == 1
    file.write_text("from dataclasses import replace\n" + code.replace(right, wrong), "utf-8")
    fails(project, test)


@pytest.mark.parametrize(("right", "wrong", "test"), LAW_FAULTS.values(), ids=LAW_FAULTS.keys())
def test_a_cache_under_another_law_does_not_pass(project: Path, right: str, wrong: str, test: str) -> None:
    source = (ROOT / "cache/transitions.py").read_text("utf-8")
    assert source.count(right) == 1
    faulty = ast.parse(source.replace(right, wrong))
    functions = [each for each in faulty.body if isinstance(each, ast.FunctionDef)]
    code = "\n\n".join(map(ast.unparse, functions))
    (project / "law.py").write_text(
        f"from oncegate.cache import transitions\nglobals().update(vars(transitions))\n{code}\n"
    )
    file = project / "sqlite_cache.py"
    ours = re.sub(r"backend\.(claim|renew|complete|release|resolve)\(", r"law.\1(", file.read_text("utf-8"))
    file.write_text("import law\n" + ours, "utf-8")
    fails(project, test)


SWAPPING = """\
import asyncio, time
from oncegate import MemoryCache, backend
from oncegate.cache.memory.store import ExpiringBytes

class SwappingCache(MemoryCache):
    async def _swap(self, key, decide):
        while True:
            now_ms = self._now_ms()
            seen = self._entries.get(key, now_ms)
            move = decide(self._read(key, now_ms, traced=True))
            await asyncio.sleep(0)
            there = self._entries.get(key, self._now_ms())
            if EXPECTED(there) != EXPECTED(seen):
                continue
            if move.ttl_ms == backend.REMOVED:
                self._entries.drop(key)
            elif move.record is not None:
                self._entries.put(key, backend.encode(move.record), now_ms + move.ttl_ms)
            elif move.ttl_ms != backend.UNCHANGED:
                self._entries.prolong(key, now_ms + move.ttl_ms)
            return move.answer

    async def claim(self, key, request, *, adopt=None):
        return await self._swap(key, lambda held: backend.claim(held, request))

    async def renew(self, key, *, token, lease_ms):
        return await self._swap(key, lambda held: backend.renew(held, token, lease_ms))

    async def complete(self, key, outcome, *, ttl_ms):
        return await self._swap(key, lambda held: backend.complete(held, outcome, ttl_ms))

    async def release(self, key, *, token):
        return await self._swap(key, lambda held: backend.release(held, token))

    async def resolve(self, key, request):
        return await self._swap(key, lambda held: backend.resolve(held, request))
"""
"""A cache that looks, decides, and swaps if what it looked at is still there. ``EXPECTED`` is what it compares."""
SWAPPING_TEST = """\
import os
import pytest
from oncegate.testing import CacheBehaviours
from swapping_cache import SwappingCache

class SwappingStore:
    def __init__(self):
        self.now = 1_000_000
        self.cache = SwappingCache(clock=lambda: self.now / 1000)
        self.key = f"test:{os.urandom(6).hex()}:caller"

    def pass_time(self, milliseconds):
        self.now += milliseconds

class TestSwappingCache(CacheBehaviours):
    @pytest.fixture
    def store(self):
        return SwappingStore()
"""


@pytest.fixture
def swapping(tmp_path: Path) -> Callable[[str], Path]:
    """A project with a cache that compares what ``expected``, a function's source, makes of an entry."""

    def made(expected: str) -> Path:
        (tmp_path / "swapping_cache.py").write_text(f"{SWAPPING}\nEXPECTED = {expected}\n")
        (tmp_path / "test_swapping_cache.py").write_text(SWAPPING_TEST)
        (tmp_path / "pytest.ini").write_text(CONFIGURATION)
        return tmp_path

    return made


def test_a_cache_that_compares_and_swaps_passes_the_suite(swapping: Callable[[str], Path]) -> None:
    passed, failed, printed = suite(swapping("lambda entry: entry"))
    assert not failed, printed
    assert passed >= 130, printed


BLIND = {
    "nothing": ("lambda entry: None", "test_of_many_claims_at_once_exactly_one_is_won"),
    "its bytes without their end, before a claim": (
        "lambda entry: entry and entry.data",
        "test_of_a_renewal_and_a_takeover_at_once_one_is_made",
    ),
    "its bytes without their end, before a resolution": (
        "lambda entry: entry and entry.data",
        "test_of_a_renewal_and_a_resolution_at_once_one_is_made",
    ),
}


@pytest.mark.parametrize(("expected", "test"), BLIND.values(), ids=BLIND.keys())
def test_a_cache_that_compares_too_little_does_not_pass(
    swapping: Callable[[str], Path], expected: str, test: str
) -> None:
    fails(swapping(expected), test)


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
    folder = Path(testing.__file__).parent
    parts = [part for part in pkgutil.iter_modules(testing.__path__) if not part.ispkg]
    parts = [part for part in parts if "    assert " in (folder / f"{part.name}.py").read_text()]
    loaders = {part.name: type(importlib.import_module(f"{testing.__name__}.{part.name}").__loader__) for part in parts}
    assert loaders
    assert set(loaders.values()) == {AssertionRewritingHook}, loaders
