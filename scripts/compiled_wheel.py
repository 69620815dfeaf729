"""Builds the wheel in which the way of a request is compiled by mypyc (docs/decisions/0012-compiled.md).

    python scripts/compiled_wheel.py FOLDER [--for-tests]

With --for-tests the C compiler optimises nothing: the C code is the same, and compiled in a fraction of the time.
It needs mypy, setuptools, a C compiler and Python's headers.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

MARK = "# Compiled: docs/decisions/0012-compiled.md"
"""The line of a module that is compiled. What is not, and why, stands in the decision."""


def marked_modules() -> list[str]:
    """The modules with the `MARK`, as paths below `ROOT` without their suffix."""
    sources = (path for folder in ("app", "cache", "middleware") for path in (ROOT / folder).rglob("*.py"))
    return sorted(
        str(path.relative_to(ROOT).with_suffix("")) for path in sources if MARK in path.read_text().splitlines()
    )


_SETUP = """\
from mypyc.build import mypycify
from setuptools import setup

extensions = mypycify(["--config-file=pyproject.toml", *{modules!r}], group_name="oncegate", **{options!r})
for extension in extensions:
    extension.extra_compile_args.append("-Wno-misleading-indentation")
setup(ext_modules=extensions)
"""
"""What warns of misleading indentation took gcc two thirds of its time: all of it is in one file of 300,000 lines."""


_RELEASED = {"opt_level": "3"}
_FOR_TESTS = {"opt_level": "0", "debug_level": "0"}


def build(into: Path, *, for_tests: bool = False) -> Path:
    """Build it into the folder ``into``; its path. Raises ``subprocess.CalledProcessError``: what failed was told."""
    with tempfile.TemporaryDirectory(prefix="oncegate-compile-") as folder:
        tree = Path(folder)
        shutil.copytree(ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
        lines = (ROOT / "pyproject.toml").read_text().splitlines(keepends=True)
        # Here the folders stand where they are installed, so that mypyc finds each module under its name.
        (tree / "pyproject.toml").write_text("".join(line for line in lines if not line.startswith('"oncegate.')))
        for name in ("README.md", "LICENSE"):
            shutil.copy(ROOT / name, tree)
        modules = [f"src/oncegate/{name}.py" for name in marked_modules()]
        options = _FOR_TESTS if for_tests else _RELEASED
        (tree / "setup.py").write_text(_SETUP.format(modules=modules, options=options))
        command = [sys.executable, "-c", "from setuptools.build_meta import build_wheel; print(build_wheel('dist'))"]
        done = subprocess.run(command, cwd=tree, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise SystemExit(f"{done.stdout}\nscripts/compiled_wheel.py: it could not be built")
        into.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(next((tree / "dist").glob("*.whl")), into))


if __name__ == "__main__":
    print(build(Path(sys.argv[1]), for_tests="--for-tests" in sys.argv[2:]))
