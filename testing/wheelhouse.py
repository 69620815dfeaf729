"""What a stranger installs from, without a network: a copy of the checkout, and what it depends on as wheels.

The wheels are packed anew from what scripts/setup has installed, by each package's own list of files. pip resolves and installs
them as it would those of an index: a dependency that pyproject.toml doesn't name is missing there, too.
"""

import re
import shutil
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
FOLDERS = ("src", "app", "middleware", "cache", "scripts")
FILES = ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in")


def copy_checkout(into: Path) -> None:
    """What a wheel is built from, and the deployment examples. A build leaves folders behind, and would find earlier ones."""
    into.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copy(ROOT / name, into)
    for name in FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / name, into / name, symlinks=True, ignore=ignored)
    shutil.copytree(ROOT / "docs" / "deploy", into / "docs" / "deploy")


def pack_wheels(into: Path, *wanted: str) -> None:
    """Packs what ``wanted`` need, such as ``oncegate[fastapi]``, and ``wanted`` themselves unless they are this checkout."""
    into.mkdir(parents=True, exist_ok=True)
    for installed in _closure(wanted):
        if installed.name != "oncegate":
            _pack(installed, into)


def _closure(wanted: tuple[str, ...]) -> Iterator[Distribution]:
    seen: set[tuple[str, str]] = set()
    waiting = [Requirement(each) for each in wanted]
    while waiting:
        requirement = waiting.pop()
        for extra in ("", *requirement.extras):
            if (requirement.name, extra) in seen:
                continue
            seen.add((requirement.name, extra))
            try:
                installed = distribution(requirement.name)
            except PackageNotFoundError:
                raise AssertionError(f"{requirement.name} is needed, but not installed: scripts/setup --dev") from None
            if not extra:
                yield installed
            needed = map(Requirement, installed.requires or ())
            waiting += [each for each in needed if each.marker is None or each.marker.evaluate({"extra": extra})]


def _pack(installed: Distribution, into: Path) -> None:
    tags = re.findall(r"^Tag: (\S+)$", installed.read_text("WHEEL") or "", re.M)
    name = re.sub(r"[-_.]+", "_", installed.name)
    with zipfile.ZipFile(into / f"{name}-{installed.version}-{tags[-1]}.whl", "w") as wheel:
        for file in installed.files or ():
            # Scripts are made anew, and compiled files too.
            if ".." not in file.parts and file.suffix != ".pyc" and Path(str(file.locate())).is_file():
                wheel.write(str(file.locate()), str(file))
