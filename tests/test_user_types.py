"""What users write passes their type checkers: mypy --strict and pyright, without plugins.

That is: the Python blocks of the README and of docs/, and `library_use`."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from testing import pages

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
USE = Path(__file__).parent / "library_use.py"


def write_blocks(folder: Path) -> int:
    """Writes each Python block of ``PAGES`` into ``folder``, under the name that it shows; how many there were."""
    written = 0
    for page in PAGES:
        for number, (kind, block) in enumerate(pages.BLOCK.findall(page.read_text("utf-8"))):
            if kind != "python":
                continue
            named = pages.FILE.match(block)
            file = folder / (named[1] if named else f"{page.stem}_{number}.py".replace("-", "_"))
            if file.exists() and file.read_text("utf-8") != block:  # another page's file of that name
                file = folder / f"{page.parent.name}_{page.stem}_{file.name}".replace("-", "_")
            file.write_text(block, "utf-8")
            written += 1
    return written


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("blocks")
    assert write_blocks(folder) >= 30
    shutil.copy(USE, folder)
    return folder


@pytest.mark.timeout(600)  # where scripts/check has not read FastAPI, FastStream and all that they import before
def test_what_users_write_passes_mypy(blocks: Path) -> None:
    """By our configuration: it is stricter than --strict, and what scripts/check has read needs no second look."""
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", str(blocks)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(600)
def test_what_users_write_passes_pyright(blocks: Path) -> None:
    rules = {
        "typeCheckingMode": "standard",
        "reportUnnecessaryTypeIgnoreComment": "error",
        "extraPaths": [str(ROOT / "src")],
        "pythonVersion": f"{sys.version_info.major}.{sys.version_info.minor}",
    }
    (blocks / "pyrightconfig.json").write_text(json.dumps(rules))
    command = [sys.executable, "-m", "basedpyright", "--project", ".", "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=blocks, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
