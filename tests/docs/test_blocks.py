"""Every block of the guides runs, in its page's order: files, servers, commands and what they print (see testing/pages.py)."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from oncegate.middleware.outcome.problem_kinds import KINDS
from oncegate.middleware.outcome.problems import problem
from oncegate.middleware.rules.keys.key import record_id, record_key
from testing import pages, template

DOCS = Path(__file__).parents[2] / "docs"
GUIDES = [
    "contract",
    "walkthrough",
    "tutorial",
    "rollout",
    "policies",
    "async",
    "worker",
    "subscriptions",
    "inbox",
    "ordering",
    "outbox",
    "problems",
    "security",
    "functions",
    "fastapi",
    "comparison",
    "faq",
    "projections",
    "operations",
    "tracing",
]
LITTER: list[dict[bytes, bytes]] = [{b"no": b"command"}, {b"v": b"1", b"command": b"\xff", b"body": b""}, {b"v": b"99"}]
"""Entries that somebody else has put into the stream."""
IMPORTED = (
    *[f"oncegate.{name}" for name in ("client", "fastapi", "prometheus", "sql")],
    *("sqlalchemy.ext.asyncio", "sqlalchemy.orm", "fastapi.testclient", "urllib3"),
)
"""By the process that those of the examples are forked from (testing/template.py)."""
EACH = """\
import json, sys
for number, example in enumerate(json.loads(sys.argv[1]), 1):
    exec(compile(example, f"example {number}", "exec"), {"__name__": "__main__"})
"""
"""Runs the examples of a page, each with names of its own, one after the other."""
RUN_AS_PAGES = ["walkthrough", "tutorial", "rollout", "policies", "async", "worker", "operations"]


def blocks(guide: str) -> list[tuple[str, str]]:
    return pages.BLOCK.findall((DOCS / f"{guide}.md").read_text("utf-8"))


def test_no_page_has_blocks_that_nothing_runs() -> None:
    """A page with something to type or to execute is a guide, or run by tests/docs/test_patterns.py, tests/brokers/test_page.py,
    tests/docs/test_testing_page.py, tests/docs/test_databases_page.py, tests/foreign/test_clients_page.py or
    tests/test_own_backend.py.
    """
    for page in DOCS.rglob("*.md"):
        found = pages.BLOCK.findall(page.read_text("utf-8"))
        kinds = {kind or "console" for kind, block in found if kind or re.search(r"^\$ ", block, re.M)}
        if kinds & {"python", "sh", "bash", "shell", "console"}:
            assert (
                page.stem in (*GUIDES, "brokers", "caches", "databases", "testing", "clients")
                or page.parent.name == "patterns"
            ), page


@pytest.mark.timeout(300)  # a page installs and starts things, on a machine that may be busy
@pytest.mark.parametrize("guide", RUN_AS_PAGES)
def test_a_page_does_what_it_shows(guide: str) -> None:
    page = DOCS / f"{guide}.md"
    results = pages.run(page)
    assert len(results) == len(re.findall(r"^\$ ", page.read_text("utf-8"), re.M))
    for command, shown, printed in results:
        assert pages.normal(printed) == pages.normal(shown), f"{command}\n(python -m testing.pages docs/{guide}.md)"


@pytest.mark.timeout(300)
def test_a_page_of_commands_does_what_it_shows_with_entries_among_them_that_are_none() -> None:
    page = DOCS / "worker.md"

    def litter(ports: dict[str, str]) -> None:
        with redis.Redis(port=int(ports["6379"])) as client:
            for fields in LITTER:
                client.xadd("{shop:stream:commands}", fields)

    shown = dead = 0
    for command, wanted, printed in pages.run(page, litter):
        if command.startswith(("oncegate commands list", "oncegate commands retry --all")):
            dead += printed.count("undecodable")  # there are more of them than the page has
        else:
            assert pages.normal(printed) == pages.normal(wanted), command
            shown += 1
    assert shown
    assert dead >= len(LITTER)


def test_the_asynchronous_command_goes_from_202_to_its_result_and_back_to_the_202() -> None:
    """What the README says of it, which `test_a_page_does_what_it_shows` holds to be true."""
    shown = [block for kind, block in blocks("async") if kind == "console"]
    accepted = [text for text in shown if "202 Accepted" in text]
    assert [text.count("idempotent-replayed: true") for text in accepted[:2]] == [0, 1]
    assert len({re.findall(r'^{"status":"accepted".*}$', text, re.M)[0] for text in accepted[:2]}) == 1
    assert '"status":"succeeded"' in "".join(shown[shown.index(accepted[0]) : shown.index(accepted[1])])


@pytest.mark.parametrize("guide", [guide for guide in GUIDES if guide not in RUN_AS_PAGES])
def test_an_example_in_python_runs(guide: str, tmp_path: Path) -> None:
    kinds = {kind for kind, _ in blocks(guide) if kind}
    # js: tests/foreign runs it, where node is. sql: the roles that tests/sql/database/test_roles.py makes.
    assert kinds <= {"python", "json", "text", "toml", "js", "sql"}, (
        "what is typed into a shell belongs on a page that is run"
    )
    examples = [example for kind, example in blocks(guide) if kind == "python"]
    if examples:
        done = template.run("-c", EACH, json.dumps(examples), preloaded=IMPORTED, cwd=tmp_path)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("guide", [guide for guide in GUIDES if guide not in RUN_AS_PAGES])
def test_an_example_of_a_configuration_is_one(guide: str, tmp_path: Path) -> None:
    from oncegate.app.settings.loading.sources import load

    for kind, example in blocks(guide):
        if kind == "toml":
            (tmp_path / "example.toml").write_text(example)
            load({"upstream": "http://127.0.0.1:9000"}, str(tmp_path / "example.toml"))


# -- problems.md says of each problem what the code does --------------------------------------------------------------

PROBLEMS = (DOCS / "problems.md").read_text("utf-8")


def test_the_example_of_a_problem_is_one() -> None:
    (example,) = [block for kind, block in blocks("problems") if kind == "json"]
    shown = json.loads(example)
    made = problem("in-flight", docs_url="/_oncegate/problems/")
    assert {name: shown[name] for name in json.loads(made.body)} == json.loads(made.body)
    assert record_id(record_key("any", shown["idempotency_key"], None)) == shown["record"]


def test_the_table_of_problems_is_that_of_the_code() -> None:
    script = DOCS.parent / "scripts" / "problems_table.py"
    subprocess.run([sys.executable, script, "--check"], check=True, timeout=60)


def test_each_problem_has_its_section_and_each_section_its_answers() -> None:
    sections = dict(re.findall(r"^## ([\w-]+)\n(.*?)(?=^## |\Z)", PROBLEMS, re.M | re.S))
    assert list(sections) == list(KINDS)
    for slug, text in sections.items():
        for answer in ("**What happened.**", "**What was executed.**", "**Send it again?**", "**What to do.**"):
            assert answer in text, slug
        again = re.search(r"\*\*Send it again\?\*\* (\w+)", text)
        assert again, slug
        assert again[1] == ("Yes" if KINDS[slug].retryable else "No"), slug
