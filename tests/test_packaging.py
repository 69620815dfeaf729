"""The wheel holds one package, ``oncegate``, and all of it, although its folders stand at the top of the tree."""

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.wheelhouse import copy_checkout

ROOT = Path(__file__).parent.parent
FOLDERS = {
    "oncegate": "src/oncegate",
    "oncegate/app": "app",
    "oncegate/middleware": "middleware",
    "oncegate/cache": "cache",
}


def sources(folder: Path) -> Iterator[Path]:
    """The files below ``folder``, without those behind links."""
    for path in folder.iterdir():
        if path.is_file() and path.suffix != ".pyc":
            yield path
        elif path.is_dir() and not path.is_symlink() and path.name != "__pycache__":
            yield from sources(path)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """Built from a copy: a build leaves folders behind, and would find what an earlier one has left."""
    tree = tmp_path_factory.mktemp("tree") / "oncegate"
    copy_checkout(tree)
    out = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    build += ["--wheel-dir", str(out), str(tree)]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(next(out.glob("*.whl"))) as archive:
        yield archive


def test_the_wheel_holds_what_the_tree_holds(wheel: zipfile.ZipFile) -> None:
    tree = {
        f"{package}/{file.relative_to(ROOT / folder)}"
        for package, folder in FOLDERS.items()
        for file in sources(ROOT / folder)
    }
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert packed == tree
    assert "oncegate/py.typed" in packed
    assert any(name.endswith(".lua") for name in packed)


def test_the_wheel_installs_one_package(wheel: zipfile.ZipFile) -> None:
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    assert sorted(top for top in tops if not top.endswith(".dist-info")) == ["oncegate"]


def test_every_module_of_the_wheel_can_be_imported(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    code = (
        "import sys, pkgutil, importlib; sys.path.insert(0, sys.argv[1]); import oncegate\n"
        "assert oncegate.__file__.startswith(sys.argv[1]), oncegate.__file__\n"
        "names = [m.name for m in pkgutil.walk_packages(oncegate.__path__, 'oncegate.')]\n"
        "assert 'oncegate.cache.redis.store' in names and 'oncegate.app.cli.main' in names, names\n"
        "for name in names: importlib.import_module(name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_console_script_is_there(wheel: zipfile.ZipFile) -> None:
    scripts = next(name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert "oncegate = oncegate.app.cli.main:main" in wheel.read(scripts).decode()
