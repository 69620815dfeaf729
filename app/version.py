"""Which oncegate runs: its version, the commit that it was built of, the build, the interpreter.

scripts/build_backend.py loads this file by its path, without the package: it imports nothing of that above.
"""

import platform
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Final

COMMIT: Final = "commit.txt"
"""The file of the package that names the commit. The build writes it; no checkout holds it."""
UNKNOWN: Final = "unknown"


def described() -> str:
    """A line for people: ``oncegate 0.1.0, commit 5f0c..., compiled, CPython 3.11.7``."""
    from oncegate import __version__

    return f"oncegate {__version__}, commit {_commit()}, {_build()}, {_interpreter()}"


def running() -> str:
    """The same for a process that starts, which runs no git: of a checkout it names no commit."""
    from oncegate import __version__

    built_of = _built_of()
    where_from = f"commit {built_of}" if built_of else "a checkout"
    return f"oncegate {__version__}, {where_from}, {_build()}, {_interpreter()}"


def build() -> str:
    """The build in short, for what many processes report: ``5f0c..., compiled``. Of a checkout it names no commit."""
    return f"{_built_of() or 'a checkout'}, {_build()}"


def commit_of(checkout: Path) -> str:
    """The commit of a checkout, with `` and changes`` where what the package is made of is other than that.

    ``unknown`` where git is missing, doesn't answer in 10 s, or knows of nothing there; also where the folder is no checkout
    itself, but within that of another project.
    """
    if not (checkout / ".git").exists():
        return UNKNOWN

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(checkout), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout.strip()  # noqa: S603  # of constants

    try:
        commit = git("rev-parse", "HEAD")
        changed = git("status", "--porcelain", "--", "src", "app", "middleware", "cache", "pyproject.toml")
    except (OSError, subprocess.SubprocessError):
        return UNKNOWN
    return f"{commit} and changes" if changed else commit


def _commit() -> str:
    return _built_of() or commit_of(_package().parent.parent)


def _built_of() -> str:
    """The commit that the build was made of; empty where no build has made this package: it is the one of a checkout."""
    try:
        return (_package() / COMMIT).read_text("utf-8").strip()
    except OSError:
        return ""


def _package() -> Path:
    import oncegate

    return Path(oncegate.__file__).parent


def _build() -> str:
    """One module that requests go through stands for them: all are compiled, or none."""
    found = find_spec("oncegate.cache.codec")
    return "compiled" if found is not None and not str(found.origin).endswith(".py") else "from source"


def _interpreter() -> str:
    return f"{platform.python_implementation()} {platform.python_version()}"
