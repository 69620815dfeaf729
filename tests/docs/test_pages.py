"""The documents stay true: transcripts are replayed, generated pages compared, examples run, links followed.

Rules of docs/contract.md: R10.3.
"""

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from testing.command_line import running
from testing.fetching import fetched
from testing.pages import BLOCK, normal

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
DEMO = "http://127.0.0.1:8080"


def blocks(language: str) -> list[str]:
    return [block for kind, block in BLOCK.findall(README) if kind == language]


def anchors(page: str) -> set[str]:
    """What a link can lead to within ``page``: its headings, as they are written in an address."""
    headings = re.findall(r"^#+ (.*)$", page, re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_transcripts_of_the_readme_are_true() -> None:
    curl = fetched("curl")
    transcripts = blocks("console")
    assert len(transcripts) >= 3
    with running("demo", "--port", "0") as demo:
        demo.wait_for("Listening")
        url = demo.wait_for(r"oncegate in front of it on (http://[^ ]+?)\.?\n")[1]
        for transcript in transcripts:
            command, _, shown = transcript.partition("\n")
            assert re.match(rf"\$ curl (-i )?{re.escape(DEMO)}/", command)
            _, *arguments = shlex.split(command.removeprefix("$ ").replace(DEMO, url))
            got = subprocess.run([curl, "--silent", *arguments], capture_output=True, text=True, timeout=60).stdout
            assert normal(got) == normal(shown), command
        assert demo.stop(signal.SIGINT) == 0


def test_installing_and_the_gateway_come_before_the_transcripts() -> None:
    steps = ["pip install", "oncegate serve --upstream", "```console"]
    assert [README.index(step) for step in steps] == sorted(README.index(step) for step in steps)


def test_the_readme_leads_to_every_page() -> None:
    pages = [path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md")]
    pages += ["docs/deploy", "docs/decisions", "docs/patterns/README.md"]
    assert [page for page in pages if page not in README] == []


def test_the_first_shell_block_of_a_section_is_its_one_command() -> None:
    for section, command in (("Quick start", "scripts/demo"), ("Test", "scripts/test")):
        text = README.partition(f"\n## {section}\n")[2]
        first = re.search(r"^```sh\n(.*?)^```$", text, re.M | re.S)
        assert first, section
        assert first[1] == f"{command}\n"
        assert (ROOT / command).stat().st_mode & 0o111


def test_ci_runs_the_command_of_the_test_section() -> None:
    assert (ROOT / ".ci/run").read_text("utf-8").splitlines()[-1] == "exec scripts/test"


@pytest.mark.parametrize(
    ("script", "page"),
    [
        ("state_machine.py", "docs/state-machine.md"),
        ("reference.py", "docs/configuration.md"),
        ("public_interface.py", "docs/reference.md"),
        ("openapi.py", "openapi/oncegate.yaml"),
    ],
)
def test_generated_pages_are_up_to_date(script: str, page: str) -> None:
    made = subprocess.run([sys.executable, ROOT / "scripts" / script], capture_output=True, text=True, check=True)
    assert made.stdout == (ROOT / page).read_text("utf-8"), "run scripts/docs"


def test_the_examples_in_python_run() -> None:
    for example in blocks("python"):
        done = subprocess.run([sys.executable, "-W", "error", "-c", example], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_the_example_of_a_configuration_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from oncegate.app.settings.loading.sources import load

    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:6379/0")
    for example in blocks("toml"):
        (tmp_path / "example.toml").write_text(example)
        settings = load({}, str(tmp_path / "example.toml"))
        assert settings.routes[0].status == {402: "success"}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", document.read_text("utf-8")):
        path = document.parent / target if target else document
        assert path.exists(), target
        assert not anchor or anchor in anchors(path.read_text("utf-8")), f"{target}#{anchor}"


def test_decisions_are_numbered_without_a_gap() -> None:
    numbers = sorted(path.name[:4] for path in (ROOT / "docs/decisions").glob("*.md"))
    assert numbers == [f"{number:04}" for number in range(1, len(numbers) + 1)]
    assert numbers
