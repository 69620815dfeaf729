"""Which oncegate runs: its version, the commit that it was built of, the build.

scripts/build_backend.py loads this file by its path, without the package: it imports nothing of that above.
"""

import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Final

COMMIT: Final = "commit.txt"
"""The file of the package that names the commit. The build writes it; no checkout holds it."""
UNKNOWN: Final = "unknown"


def described() -> str:
    """A line for people: ``oncegate 0.1.0, commit 5f0c..., compiled``."""
    from oncegate import __version__

    return f"oncegate {__version__}, commit {_commit()}, {'compiled' if _is_compiled() else 'from source'}"


def build() -> str:
    """The build in short, for what many processes report: ``5f0c..., compiled``. Of a checkout it names no commit."""
    return f"{_built_of() or 'a checkout'}, {'compiled' if _is_compiled() else 'from source'}"


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


def _is_compiled() -> bool:
    """Whether a module that requests go through is compiled: all are, or none."""
    found = find_spec("oncegate.cache.codec")
    return found is not None and not str(found.origin).endswith(".py")
