"""Builds oncegate's wheel. pip calls it (PEP 517, `build-system` in pyproject.toml), whoever asks for the wheel.

    pip install .                          from source: runs on every Python
    ONCEGATE_COMPILED=1 pip install .      the way of a request is compiled by mypyc (docs/decisions/0012-compiled.md)

The second one wants a C compiler and Python's headers. ``ONCEGATE_COMPILED=unoptimized`` makes the same C code, and compiles it
in a fraction of the time: for tests. Each wheel is built in a copy of the tree whose folders stand where they are installed, so
that mypyc finds each module under its name, and nothing is left in the checkout. In it are the name of its commit (`COMMIT`) and
a bill of materials (scripts/bill_of_materials.py).
"""

import contextlib
import os
import runpy
import shutil
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from setuptools import build_meta

from scripts import bill_of_materials

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("app", "cache", "middleware")
"""What stands beside ``src/oncegate`` in the tree, and in it in the package."""

MARK = "# Compiled: docs/decisions/0012-compiled.md"
"""The line of a module that is compiled. What is not, and why, stands in the decision."""

_VERSION = runpy.run_path(str(ROOT / "app/version.py"))
COMMIT = f"src/oncegate/{_VERSION['COMMIT']}"
"""The file that names the commit, where `oncegate --version` looks for it."""

_COMPILERS_OPTIONS = {"1": {"opt_level": "3"}, "unoptimized": {"opt_level": "0", "debug_level": "0"}}
"""What ``ONCEGATE_COMPILED`` may say, and what mypyc is called with then."""

_SETUP = """\
from mypyc.build import mypycify
from setuptools import setup

extensions = mypycify(["--config-file=pyproject.toml", *{modules!r}], group_name="oncegate", **{options!r})
for extension in extensions:
    extension.extra_compile_args += ["-Wno-misleading-indentation", "-fvisibility=hidden", "-fno-plt"]
setup(ext_modules=extensions)
"""
"""What warns of misleading indentation took gcc two thirds of its time: all of it is in one file of 300,000 lines. Functions that
nothing outside of that file can replace are called directly: 3% fewer instructions for a first request."""

_Settings = Mapping[str, Any] | None


def marked_modules() -> list[str]:
    """The modules with the `MARK`, as paths below `ROOT` without their suffix."""
    sources = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return sorted(
        str(path.relative_to(ROOT).with_suffix("")) for path in sources if MARK in path.read_text().splitlines()
    )


def get_requires_for_build_wheel(config_settings: _Settings = None) -> list[str]:  # noqa: ARG001  # PEP 517 has it
    """What a build needs besides setuptools: mypy where it compiles, and the libraries by whose types it does."""
    if not _compiles():
        return []
    project = _project()
    # Of the extras, the one whose libraries modules import that the compiled ones import.
    return ["mypy>=1.13", *project["dependencies"], *project["optional-dependencies"]["jwt"]]


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: _Settings = None) -> str:
    """Write the wheel's ``.dist-info`` with the bill of materials into the folder; its name."""
    commit = _commit()
    with _tree(commit):
        name: str = build_meta.prepare_metadata_for_build_wheel(metadata_directory, config_settings)
    bill_of_materials.write(
        Path(metadata_directory) / name, _project(), commit=commit, compiled=_compiles() is not None
    )
    return name


def build_wheel(wheel_directory: str, config_settings: _Settings = None, metadata_directory: str | None = None) -> str:
    """Build the wheel into the folder; its file name. Raises ``SystemExit`` with what is missing or wrong."""
    options = _compiles()
    with tempfile.TemporaryDirectory(prefix="oncegate-metadata-") as folder:
        if metadata_directory is None:
            metadata_directory = str(Path(folder) / prepare_metadata_for_build_wheel(folder, config_settings))
        with _tree(_commit()) as tree:
            if options is not None:
                modules = [f"src/oncegate/{name}.py" for name in marked_modules()]
                (tree / "setup.py").write_text(_SETUP.format(modules=modules, options=options))
            name: str = build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)
            return name


def build_sdist(sdist_directory: str, config_settings: _Settings = None) -> str:
    """Pack the sources, and the name of their commit, which git can't say of them any more; the file's name."""
    with tempfile.TemporaryDirectory(prefix="oncegate-build-") as folder:
        tree = Path(folder)
        _copy("src", tree / "src", symlinks=True)
        for each in (*FOLDERS, "scripts"):
            _copy(each, tree / each)
        _copy_files(tree, "pyproject.toml", "MANIFEST.in")
        (tree / COMMIT).write_text(f"{_commit()}\n")
        with contextlib.chdir(tree):
            name: str = build_meta.build_sdist(sdist_directory, config_settings)
            return name


def get_requires_for_build_editable(config_settings: _Settings = None) -> list[str]:  # noqa: ARG001  # PEP 517 has it
    """Nothing: an editable installation runs from source. Raises ``SystemExit`` where it is to be compiled."""
    if _compiles() is not None:
        raise SystemExit("an editable installation runs from source: unset ONCEGATE_COMPILED, or leave out --editable")
    return []


prepare_metadata_for_build_editable = build_meta.prepare_metadata_for_build_editable
build_editable = build_meta.build_editable


def _compiles() -> dict[str, str] | None:
    """What mypyc is called with; ``None`` where nothing is compiled."""
    given = os.environ.get("ONCEGATE_COMPILED", "")
    if given in ("", "0"):
        return None
    if given not in _COMPILERS_OPTIONS:
        raise SystemExit(f"ONCEGATE_COMPILED: is 1, unoptimized or 0, not {given}")
    return _COMPILERS_OPTIONS[given]


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project


def _commit() -> str:
    """The commit of the sources: what ``ONCEGATE_COMMIT`` says, which the Dockerfile sets; what packed sources hold; or git's."""
    if given := os.environ.get("ONCEGATE_COMMIT"):
        return given
    if (ROOT / COMMIT).exists():
        return (ROOT / COMMIT).read_text().strip()
    found: str = _VERSION["commit_of"](ROOT)
    return found


@contextlib.contextmanager
def _tree(commit: str) -> Iterator[Path]:
    """A copy of what the wheel is made of, and the working directory meanwhile."""
    with tempfile.TemporaryDirectory(prefix="oncegate-build-") as folder:
        tree = Path(folder)
        _copy("src/oncegate", tree / "src/oncegate", symlinks=True)
        for name in FOLDERS:
            (tree / "src/oncegate" / name).unlink(missing_ok=True)
            _copy(name, tree / "src/oncegate" / name)
        _copy_files(tree)
        lines = (ROOT / "pyproject.toml").read_text().splitlines(keepends=True)
        # The folders stand in the package here. Nor is this backend there: setuptools' own is meant.
        (tree / "pyproject.toml").write_text("".join(line for line in lines if not line.startswith('"oncegate.')))
        (tree / COMMIT).write_text(f"{commit}\n")
        with contextlib.chdir(tree):
            yield tree


def _copy(folder: str, to: Path, *, symlinks: bool = False) -> None:
    shutil.copytree(ROOT / folder, to, symlinks=symlinks, ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))


def _copy_files(tree: Path, *more: str) -> None:
    project = _project()
    for name in (project["readme"], *project["license-files"], *more):
        shutil.copy(ROOT / name, tree)
