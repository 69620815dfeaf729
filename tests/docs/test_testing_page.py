"""docs/testing.md in a stranger's project: its tests pass on its app, and fail on an app with the fault that each is about.

Rules of docs/contract.md: R12.41.
"""

import os
import re
from pathlib import Path

import pytest

from testing import pages, template

PAGE = Path(__file__).parents[2] / "docs/testing.md"
CONFIGURATION = "[pytest]\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n"
PRELOADED = ("pytest", "_pytest.assertion.rewrite", "fastapi.testclient", "oncegate.fastapi")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the page's files."""
    for kind, block in pages.BLOCK.findall(PAGE.read_text("utf-8")):
        named = pages.FILE.match(block)
        assert kind == "python"
        assert named
        (tmp_path / named[1]).write_text(block, "utf-8")
    (tmp_path / "pytest.ini").write_text(CONFIGURATION)
    return tmp_path


def outcomes(project: Path) -> tuple[set[str], set[str], str]:
    """The tests that passed and those that failed, and all that was printed."""
    done = template.run(
        *("-m", "pytest", f"--basetemp={project}.tmp", "-q", "-rA", "-p", "pytest_asyncio.plugin", "--tb=line", "."),
        preloaded=PRELOADED,
        cwd=project,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    found = {word: set(re.findall(rf"^{word} \S*::(test_\w+)", done.stdout, re.M)) for word in ("PASSED", "FAILED")}
    return found["PASSED"], found["FAILED"], done.stdout + done.stderr


def test_the_page_s_tests_pass(project: Path) -> None:
    passed, failed, printed = outcomes(project)
    assert not failed, printed
    assert passed == set(re.findall(r"^def (test_\w+)", (project / "test_shop.py").read_text(), re.M)), printed


FAULTS = {
    "records that outlive a test": (
        "conftest.py",
        "records.use(shop.app)  # until the test ends; no Redis is needed",
        "records.use(shop.app); records.restore = lambda: None; shop.kept = vars(shop).get('kept', records); "
        "shop.app.user_middleware[0].kwargs['cache'] = shop.kept",
        {"test_the_same_key_in_another_test_is_a_first_request"},
    ),
    "an app that executes what nobody knows": (
        "shop.py",
        'on_missing_key="reject"',
        'on_missing_key="reject", on_unknown="retry"',
        {"test_where_the_process_dies_a_retry_is_refused"},
    ),
    "an app that goes on without its cache": (
        "shop.py",
        'on_missing_key="reject"',
        'on_missing_key="reject", on_cache_down="fail_open"',
        {"test_without_its_cache_nothing_is_paid"},
    ),
    "an app that keeps no success": (
        "shop.py",
        'settings=IdempotencySettings(on_missing_key="reject")',
        'routes=[Route("/payments", on_missing_key="reject", status={"2xx": "release"})]',
        {"test_a_retry_pays_nothing"},
    ),
}


@pytest.mark.parametrize("fault", [*FAULTS])
def test_the_page_s_tests_fail_on_the_fault_that_they_are_about(project: Path, fault: str) -> None:
    name, right, wrong, to_fail = FAULTS[fault]
    text = (project / name).read_text()
    assert text.count(right) == 1
    (project / name).write_text(text.replace(right, wrong).replace("import Idem", "import Route, Idem"))
    passed, failed, printed = outcomes(project)
    assert passed, printed
    assert to_fail <= failed, printed
