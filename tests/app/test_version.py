"""`oncegate --version` names the commit: of a checkout what git says, and nothing of a repository that is another's."""

import platform
import subprocess
from pathlib import Path

import pytest

from oncegate import __version__
from oncegate.app.settings.loading.sources import load
from oncegate.app.version import UNKNOWN, commit_of, running
from testing.command_line import invoke, run

ROOT = Path(__file__).resolve().parents[2]


def git(folder: Path, *arguments: str) -> str:
    options = ["-c", "user.name=x", "-c", "user.email=x@example.com", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", str(folder), *options, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "app").mkdir()
    (tmp_path / "app/main.py").write_text("1\n")
    (tmp_path / "docs.md").write_text("1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "first")
    return tmp_path


def test_a_checkout_s_commit_is_what_git_says(checkout: Path) -> None:
    assert commit_of(checkout) == git(checkout, "rev-parse", "HEAD")
    (checkout / "docs.md").write_text("2\n")
    assert commit_of(checkout) == git(checkout, "rev-parse", "HEAD"), "a page is no part of the package"


@pytest.mark.parametrize("changed", ["app/main.py", "app/new.py"])
def test_what_was_changed_since_is_said(checkout: Path, changed: str) -> None:
    (checkout / changed).write_text("2\n")
    assert commit_of(checkout) == f"{git(checkout, 'rev-parse', 'HEAD')} and changes"


def test_the_commit_of_another_s_repository_is_not_ours(checkout: Path) -> None:
    assert commit_of(checkout / "app") == UNKNOWN


def test_without_git_the_commit_is_unknown(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert commit_of(checkout) == UNKNOWN


def test_a_repository_without_a_commit_has_none(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    assert commit_of(tmp_path) == UNKNOWN


@pytest.mark.interpreted  # the compiled build has its own commit and word
def test_the_command_line_says_it() -> None:
    interpreter = f"CPython {platform.python_version()}"
    assert run("--version").stdout == f"oncegate {__version__}, commit {commit_of(ROOT)}, from source, {interpreter}\n"


def test_check_begins_with_the_build_and_the_interpreter() -> None:
    first, *_ = invoke("check", "--upstream", "http://127.0.0.1:1").stdout.splitlines()
    assert first.split(maxsplit=2) == ["ok", "build", running()]
    assert running().endswith(f", CPython {platform.python_version()}")


def test_what_a_build_is_made_by_may_be_set_where_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEGATE_COMPILED", "1")
    monkeypatch.setenv("ONCEGATE_COMMIT", "5f0c")
    assert load({"upstream": "http://payments:9000"}).upstream == "http://payments:9000"
