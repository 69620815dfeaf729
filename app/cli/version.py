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
    import oncegate

    package = Path(oncegate.__file__).parent
    try:
        return (package / COMMIT).read_text("utf-8").strip()
    except OSError:  # no build has made this package: it is the one of a checkout
        return commit_of(package.parent.parent)


def _is_compiled() -> bool:
    """Whether a module that requests go through is compiled: all are, or none."""
    found = find_spec("oncegate.cache.codec")
    return found is not None and not str(found.origin).endswith(".py")
